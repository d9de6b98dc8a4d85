"""EAGLE heads on disk: which layout a directory has, and what it says.

    SafeAILab, SpecForge    EAGLE-3: fc [H, 3 H], midlayer.*, norm, lm_head [D, H], d2t [D], t2d [V]
    speculators             EAGLE-3: the same with layers.0.*, and config.json says speculators_model_type = eagle3
    SafeAILab               EAGLE-1 and 2: fc [H, 2 H], layers.0.* without a norm at its input; the target's own lm_head

H: width of the head, and of the target unless the config says otherwise. V: the target's vocabulary. D: the head's own,
a part of V. d2t holds offsets: draft token i is the target's token i + d2t[i]; t2d marks those that it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import LlamaConfig

from engine.heads.tensors import HeadError, Shapes, account, read_config, read_tensors

_PICKLES: Final = ("pytorch_model.bin",)
_ROPES: Final = {"default", "linear", "llama3", "yarn"}
# Buffers of old transformers versions, and what `speculators` keeps of the target for its training.
_NEEDLESS: Final = ("rotary_emb.inv_freq", "verifier_norm.weight", "verifier_lm_head.weight")
_OPTIONAL: Final = {"embed_tokens.weight", "lm_head.weight", "d2t", "t2d"}


class Fit(NamedTuple):
    """What a head must fit: the target's sizes."""

    hidden: int
    vocabulary: int
    layers: int


@dataclass(frozen=True, slots=True)
class EagleShape:
    """An EAGLE head's sizes and switches."""

    version: int  # 3, or 1 for EAGLE-1 and 2, which differ in how drafts are drawn
    block: LlamaConfig  # of its one decoder layer
    taps: tuple[int, ...]  # the target's hidden states that it reads, see engine.model.taps
    vocabulary: int  # D
    target: Fit
    fc_bias: bool = False
    norm_before_residual: bool = False  # the residual stream begins with the normed hidden state
    norm_before_fc: bool = False
    norm_output: bool = False  # a step hands on what its lm_head sees, the normed hidden state

    @property
    def hidden(self) -> int:
        """H."""
        return int(self.block.hidden_size)

    @property
    def features(self) -> int:
        """Numbers that fc takes of the target, or beside the token's embedding."""
        return 3 * self.target.hidden if self.version == 3 else self.hidden


class EagleFiles(NamedTuple):
    """A directory's content. The layer's weights go by `layer.*`, whatever the layout calls it."""

    shape: EagleShape
    tensors: dict[str, Tensor]
    targets: Tensor | None  # [D] int64: the target's token for each draft token; None: they are the same


def read_eagle(folder: Path, fit: Fit) -> EagleFiles:
    """Read a head and compare it with the target. Raises HeadError with a sentence."""
    config = read_config(folder)
    tensors = {
        key: value for key, value in read_tensors(folder, _PICKLES).items() if not key.endswith(_NEEDLESS)
    }
    prefix, shape = _shape(config, tensors, fit)
    _require_fit(shape, tensors, fit)
    account(tensors, _wanted(shape, fit, prefix), what=str(folder), optional=_OPTIONAL)
    targets = _targets(shape, tensors, fit)
    layer = len(prefix)
    named = {
        f"layer.{key[layer:]}" if key.startswith(prefix) else key: value
        for key, value in tensors.items()
        if key not in ("d2t", "t2d")
    }
    return EagleFiles(shape, named, targets)


def _shape(config: Mapping[str, Any], tensors: Mapping[str, Tensor], fit: Fit) -> tuple[str, EagleShape]:
    """What the layer's keys begin with, and the head's shape."""
    if "fc.weight" not in tensors:
        raise HeadError(f"this is no EAGLE head: it has no fc.weight, but {', '.join(sorted(tensors)[:5])}")
    kind = config.get("speculators_model_type")
    if kind is not None:
        return "layers.0.", _speculators(kind, config, fit)
    if any(key.startswith("midlayer.") for key in tensors):
        return "midlayer.", _eagle3(
            config, _block(config, fit), fit, config.get("norm_before_residual", False)
        )
    return "layers.0.", _eagle1(config, tensors, fit)


def _speculators(kind: str, config: Mapping[str, Any], fit: Fit) -> EagleShape:
    if kind != "eagle3":
        raise HeadError(
            f"speculators_model_type is {kind!r}: heads of that library can be loaded if it is eagle3"
        )
    before = config.get("norm_before_residual")
    if not isinstance(before, bool):
        raise HeadError(
            "config.json does not say norm_before_residual: tools differ in what they take it for, and a head that is "
            "run with the other drafts badly; write true or false, as it was trained"
        )
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        raise HeadError(
            "config.json has no transformer_layer_config, which describes the head's decoder layer"
        )
    return _eagle3(config, _block(layer, fit), fit, before)


def _eagle3(config: Mapping[str, Any], block: LlamaConfig, fit: Fit, before: bool) -> EagleShape:
    if config.get("fc_norm"):
        raise HeadError(
            "the head norms each hidden state by itself before fc (fc_norm), which is not supported"
        )
    taps = config.get("eagle_aux_hidden_state_layer_ids") or (config.get("eagle_config") or {}).get(
        "eagle_aux_hidden_state_layer_ids"
    )
    return EagleShape(
        version=3,
        block=block,
        taps=_taps(taps or [2, fit.layers // 2, fit.layers - 3], fit),
        vocabulary=int(config.get("draft_vocab_size") or fit.vocabulary),
        target=fit,
        norm_before_residual=before,
        norm_before_fc=bool(config.get("norm_before_fc")),
        norm_output=bool(config.get("norm_output")),
    )


def _eagle1(config: Mapping[str, Any], tensors: Mapping[str, Tensor], fit: Fit) -> EagleShape:
    block = _block(config, fit)
    inputs = tensors["fc.weight"].shape[-1]
    if inputs != 2 * block.hidden_size:
        raise HeadError(
            f"fc.weight takes {inputs} numbers: EAGLE-1 and 2 heads of width {block.hidden_size} "
            f"take {2 * block.hidden_size}; an EAGLE-3 head has its layer under midlayer.* or a speculators_model_type"
        )
    return EagleShape(
        version=1,
        block=block,
        taps=(fit.layers + 1,),
        vocabulary=fit.vocabulary,
        target=fit,
        fc_bias=bool(config.get("bias", True)),
    )


def _block(values: Mapping[str, Any], fit: Fit) -> LlamaConfig:
    """The head's decoder layer, which must be one of llama's."""
    kind = values.get("model_type", "llama")
    if kind != "llama":
        raise HeadError(f"the head's decoder layer is one of {kind}: those of llama are supported")
    known = values.get("vocab_size", fit.vocabulary)
    if known != fit.vocabulary:
        raise HeadError(
            f"the head was made for a vocabulary of {known} tokens, the target's has {fit.vocabulary}"
        )
    try:
        block = LlamaConfig(**values)
    except (StrictDataclassError, ValueError, TypeError) as fault:
        raise HeadError(
            f"the head's decoder layer is described in a way that is no llama's: {fault}"
        ) from fault
    if block.num_hidden_layers != 1:
        raise HeadError(f"the head has {block.num_hidden_layers} decoder layers: one is supported")
    rope = str(block.rope_parameters.get("rope_type"))
    if rope not in _ROPES:
        raise HeadError(f"the head's RoPE is {rope}: {', '.join(sorted(_ROPES))} are supported")
    if block.hidden_act != "silu":
        raise HeadError(f"the head's activation is {block.hidden_act}: silu is supported")
    return block


def _taps(layers: Any, fit: Fit) -> tuple[int, ...]:
    if len(layers) != 3 or not all(isinstance(layer, int) and 0 <= layer <= fit.layers for layer in layers):
        raise HeadError(
            f"the head reads hidden states {list(layers)}: three of 0 to {fit.layers} are what the target has"
        )
    return tuple(layers)


def _require_fit(shape: EagleShape, tensors: Mapping[str, Tensor], fit: Fit) -> None:
    """What shapes alone would say less clearly."""
    inputs = tensors["fc.weight"].shape[-1]
    parts = 3 if shape.version == 3 else 2
    if shape.version == 3 and inputs != parts * fit.hidden:
        raise HeadError(
            f"the head was made for a target of hidden size {inputs // parts}, this one has {fit.hidden}"
        )
    if shape.version == 1 and shape.hidden != fit.hidden:
        raise HeadError(
            f"the head was made for a target of hidden size {shape.hidden}, this one has {fit.hidden}"
        )
    if "embed_tokens.weight" not in tensors and shape.hidden != fit.hidden:
        raise HeadError(
            f"the head has no embed_tokens.weight and cannot share the target's: its width is {shape.hidden}, the "
            f"target's {fit.hidden}"
        )
    if "lm_head.weight" not in tensors and (shape.vocabulary != fit.vocabulary or shape.hidden != fit.hidden):
        raise HeadError(
            f"the head has no lm_head.weight and cannot share the target's, which is {fit.vocabulary} x {fit.hidden}: "
            f"it needs one of {shape.vocabulary} x {shape.hidden}"
        )
    if shape.vocabulary != fit.vocabulary and "d2t" not in tensors:
        raise HeadError(
            f"the head knows {shape.vocabulary} tokens of the target's {fit.vocabulary}, and has no d2t that says which"
        )


def _wanted(shape: EagleShape, fit: Fit, prefix: str) -> Shapes:
    """Every key that the layout can have, with its shape."""
    block, hidden = shape.block, shape.hidden
    inner, inputs = block.intermediate_size, (2 if shape.version == 3 else 1) * hidden
    query, key = (heads * block.head_dim for heads in (block.num_attention_heads, block.num_key_value_heads))
    layer = {
        "self_attn.q_proj.weight": (query, inputs),
        "self_attn.k_proj.weight": (key, inputs),
        "self_attn.v_proj.weight": (key, inputs),
        "self_attn.o_proj.weight": (hidden, query),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "post_attention_layernorm.weight": (hidden,),
    }
    rest: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (fit.vocabulary, hidden),
        "lm_head.weight": (shape.vocabulary, hidden),
    }
    if block.attention_bias:
        layer |= {"self_attn.q_proj.bias": (query,), "self_attn.o_proj.bias": (hidden,)}
        layer |= {"self_attn.k_proj.bias": (key,), "self_attn.v_proj.bias": (key,)}
    if shape.version == 3:
        layer |= {"input_layernorm.weight": (hidden,), "hidden_norm.weight": (hidden,)}
        rest |= {"fc.weight": (hidden, 3 * fit.hidden), "norm.weight": (hidden,)}
        rest |= {"d2t": (shape.vocabulary,), "t2d": (fit.vocabulary,)}
    else:
        rest |= {"fc.weight": (hidden, 2 * hidden)}
    if shape.norm_before_fc:
        rest |= {"input_norm.weight": (3 * fit.hidden,)}
    if shape.fc_bias:
        rest |= {"fc.bias": (hidden,)}
    return {prefix + name: size for name, size in layer.items()} | rest


def _targets(shape: EagleShape, tensors: Mapping[str, Tensor], fit: Fit) -> Tensor | None:
    """[D]: what d2t says, compared with t2d."""
    if "d2t" not in tensors:
        return None
    targets = torch.arange(shape.vocabulary) + tensors["d2t"].long()
    inside = bool(((targets >= 0) & (targets < fit.vocabulary)).all())
    if not inside or len(set(targets.tolist())) < len(targets):
        raise HeadError(
            "d2t does not name the target's tokens: it must hold offsets, so that draft token i is token i + d2t[i], "
            f"each another one of the target's {fit.vocabulary}"
        )
    marks = tensors.get("t2d")
    if marks is not None and not torch.equal(marks.bool().nonzero()[:, 0], targets.sort().values):
        raise HeadError("t2d and d2t disagree about which of the target's tokens the head knows")
    return targets
