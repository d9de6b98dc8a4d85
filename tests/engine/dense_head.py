"""An EAGLE head on a whole text at once, written as the papers and their code have it."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from engine.heads.formats import EagleFiles, EagleShape


def norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def dense(files: EagleFiles, tokens: Tensor, hidden: Tensor, embedding: Tensor) -> tuple[Tensor, Tensor]:
    """(handed on [T, H], logits [T, D]) of a whole text, as the papers write it. hidden: [T, H]."""
    shape, w, _ = files
    embedded = embedding[tokens]
    if shape.version == 1:
        residual = x = torch.cat([embedded, hidden], -1) @ w["fc.weight"].t() + w["fc.bias"]
    else:
        normed = norm(hidden, w["layer.hidden_norm.weight"])
        residual = normed if shape.norm_before_residual else hidden
        x = torch.cat([norm(embedded, w["layer.input_layernorm.weight"]), normed], -1)
    x = residual + attend(shape, w, x)
    y = norm(x, w["layer.post_attention_layernorm.weight"])
    gated = silu(y @ w["layer.mlp.gate_proj.weight"].t()) * (y @ w["layer.mlp.up_proj.weight"].t())
    x = x + gated @ w["layer.mlp.down_proj.weight"].t()
    if shape.version == 1:
        return x, x @ embedding.t()
    said = norm(x, w["norm.weight"])
    return said if shape.norm_output else x, said @ w["lm_head.weight"].t()


def attend(shape: EagleShape, w: dict[str, Tensor], x: Tensor) -> Tensor:
    heads = {
        name: (x @ w[f"layer.self_attn.{name}_proj.weight"].t()).view(1, len(x), -1, 16) for name in "qkv"
    }
    q, k, v = (heads[name].transpose(1, 2) for name in "qkv")
    rotary = LlamaRotaryEmbedding(LlamaConfig(hidden_size=64, num_attention_heads=4, rope_theta=10000.0))
    q, k = apply_rotary_pos_emb(q, k, *rotary(x[None], torch.arange(len(x))[None]))
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).reshape(len(x), -1) @ w["layer.self_attn.o_proj.weight"].t()


def logits_after(
    files: EagleFiles, tokens: list[int], features: Tensor, embedding: Tensor, way: Sequence[int]
) -> Tensor:
    """What an EAGLE-3 head with a vocabulary of its own says after a text and drafted tokens behind it: [V].

    features: [len(tokens) - 1, H], of all the text's tokens but the last.
    """
    assert files.targets is not None
    text, hidden = list(tokens), features
    handed_on, logits = dense(files, torch.tensor(text[1:]), hidden, embedding)
    for token in way:
        text.append(token)
        hidden = torch.cat([hidden, handed_on[-1:]])
        handed_on, logits = dense(files, torch.tensor(text[1:]), hidden, embedding)
    spread = torch.full((len(embedding),), -torch.inf)
    spread[files.targets] = logits[-1]
    return spread
