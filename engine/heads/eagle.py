"""An EAGLE head: one decoder layer that goes on from what the target has understood of a text.

Sources: Li et al., "EAGLE: speculative sampling requires rethinking feature uncertainty", ICML 2024; "EAGLE-2: faster
inference of language models with dynamic draft trees", EMNLP 2024; "EAGLE-3: scaling up inference acceleration of large
language models via training-time test", 2025.

A row pairs what was understood of a position with the token after it, and says the token after that. From the second
drafted token on, what was understood is the head's own output.

    token     t1    t2    t3  | d1    d2           f: of the target; g: of the head's own row before
    hidden    f0    f1    f2  | g3    g4
    said                  d1  | d2    d3

This is the specification, plain and in any number format; `engine.heads.fused` is the fast one.
"""

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.attention.paged import AttentionContext, Extras
from engine.heads.formats import EagleFiles, EagleShape
from engine.kernels.reference import TorchOps
from engine.kv.memory import LayerShape
from engine.model.ends import Ends

_OPS = TorchOps()


class Said(NamedTuple):
    """What a head says of some rows."""

    hidden: Tensor  # [R, H], for the rows after them
    logits: Tensor  # [R, D]


class HeadForward(Protocol):
    """An EAGLE head as its proposer calls it. Pure but for the keys that `attention` writes."""

    def __call__(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, attention: AttentionContext, rows: Tensor
    ) -> Said:
        """tokens, positions: [1, T]; hidden: [T, H], what was understood of the position before; rows: [R] of T."""


class Norm(nn.Module):
    """Root mean square norm, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[T, H] -> the same shape."""
        return _OPS.add_rms_norm(x, None, self.weight.float(), self.eps)


class _Attention(nn.Module):
    def __init__(self, shape: EagleShape) -> None:
        super().__init__()
        block, inputs = shape.block, (2 if shape.version == 3 else 1) * shape.hidden
        self.heads, self.kv_heads, self.dim = (
            block.num_attention_heads,
            block.num_key_value_heads,
            block.head_dim,
        )
        bias = block.attention_bias
        self.q_proj = nn.Linear(inputs, self.heads * self.dim, bias=bias)
        self.k_proj = nn.Linear(inputs, self.kv_heads * self.dim, bias=bias)
        self.v_proj = nn.Linear(inputs, self.kv_heads * self.dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.dim, shape.hidden, bias=bias)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor], attention: AttentionContext) -> Tensor:
        """[T, inputs] -> [T, H]."""
        query = _OPS.rotate(self.q_proj(x).view(len(x), self.heads, self.dim), *angles)
        key = _OPS.rotate(self.k_proj(x).view(len(x), self.kv_heads, self.dim), *angles)
        value = self.v_proj(x).view(len(x), self.kv_heads, self.dim)
        out = attention.attend(0, query, key, value, Extras(self.dim**-0.5))
        return self.o_proj(out.reshape(len(x), -1))  # type: ignore[no-any-return]


class _Mlp(nn.Module):
    def __init__(self, shape: EagleShape) -> None:
        super().__init__()
        inner = shape.block.intermediate_size
        self.gate_proj = nn.Linear(shape.hidden, inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[T, H] -> [T, H]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class _Layer(nn.Module):
    """A llama layer. In EAGLE-3 its attention reads token and hidden state side by side, each normed by itself."""

    def __init__(self, shape: EagleShape) -> None:
        super().__init__()
        eps = shape.block.rms_norm_eps
        self.self_attn = _Attention(shape)
        self.mlp = _Mlp(shape)
        self.post_attention_layernorm = Norm(shape.hidden, eps)
        if shape.version == 3:
            self.input_layernorm = Norm(shape.hidden, eps)
            self.hidden_norm = Norm(shape.hidden, eps)


class EagleHead(nn.Module):
    """See HeadForward. What the files do not bring is the target's."""

    def __init__(self, files: EagleFiles, ends: Ends) -> None:
        """ends: the target's. Weights are as empty as torch leaves them until they are loaded: see `of`."""
        super().__init__()
        shape, own = files.shape, files.tensors
        eps = shape.block.rms_norm_eps
        self.shape = shape
        inputs = shape.features if shape.version == 3 else 2 * shape.hidden
        self.fc = nn.Linear(inputs, shape.hidden, bias=shape.fc_bias)
        self.layer = _Layer(shape)
        if shape.version == 3:
            self.norm = Norm(shape.hidden, eps)
        if shape.norm_before_fc:
            self.input_norm = Norm(shape.features, eps)
        if "embed_tokens.weight" in own:
            self.embed_tokens = nn.Embedding(shape.target.vocabulary, shape.hidden)
        if "lm_head.weight" in own:
            self.lm_head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        self._ends = ends
        self._rotary = LlamaRotaryEmbedding(shape.block)

    @classmethod
    def of(cls, files: EagleFiles, ends: Ends, dtype: torch.dtype) -> "EagleHead":
        """With the weights of a directory in the target's number format, where the target is."""
        head, device = cls(files, ends), ends.embedding.device
        head.load_state_dict(
            {key: value.to(device, dtype) for key, value in files.tensors.items()}, assign=True
        )
        head.rotary.to(device)
        return head.eval().requires_grad_(requires_grad=False)

    @property
    def rotary(self) -> LlamaRotaryEmbedding:
        """Cosines and sines by position."""
        return self._rotary

    @property
    def kv_shape(self) -> LayerShape:
        """What it stores per position."""
        attention = self.layer.self_attn
        return LayerShape(attention.kv_heads, attention.dim, attention.dim)

    @property
    def embedding(self) -> Tensor:
        """[V, H]."""
        return self.embed_tokens.weight if hasattr(self, "embed_tokens") else self._ends.embedding

    @property
    def own_embedding_bytes(self) -> int:
        """Memory of an embedding that is not the target's."""
        return self.embedding.nbytes if hasattr(self, "embed_tokens") else 0

    @torch.inference_mode()
    def features(self, taps: Tensor) -> Tensor:
        """What it keeps of the target's hidden states, side by side: [T, features] -> [T, H]."""
        if self.shape.version == 1:
            return taps
        return self.fc(self.input_norm(taps) if self.shape.norm_before_fc else taps)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, attention: AttentionContext, rows: Tensor
    ) -> Said:
        """See HeadForward."""
        x, residual = self._enter(F.embedding(tokens[0], self.embedding), hidden)
        cosine, sine = self._rotary(x[None], positions)
        layer = self.layer
        hidden = residual + layer.self_attn(x, (cosine[0].float(), sine[0].float()), attention)
        hidden = hidden[rows]
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        said = self.norm(hidden) if self.shape.version == 3 else hidden
        logits = self.lm_head(said) if hasattr(self, "lm_head") else self._ends.head(said)
        return Said(said if self.shape.norm_output else hidden, logits)

    def _enter(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What attention reads, and the residual stream that it adds to."""
        if self.shape.version == 1:
            x = self.fc(torch.cat([embedded, hidden], dim=-1))
            return x, x
        normed = self.layer.hidden_norm(hidden)
        x = torch.cat([self.layer.input_layernorm(embedded), normed], dim=-1)
        return x, normed if self.shape.norm_before_residual else hidden
