"""A lean forward for the llama block, with or without norms of its heads, over the weights that transformers loaded.

transformers' forward spends about as long in Python and small operations as in its matrix products at batch 1. This
one fuses q/k/v and gate/up, keeps activations as [T, H] and does nothing per layer that can be done once. It is used
where the load-time self-check finds it equal to transformers' forward to rounding; that forward stays the reference.
"""

import copy
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.attention.paged import AttentionContext, Extras
from engine.kernels.native import NativeOps
from engine.kernels.reference import LayerOps
from engine.model.ends import Ends
from engine.model.packed import Linear, make_linear
from engine.model.taps import Taps

_TYPES: Final = {"llama", "mistral", "qwen2", "qwen3"}


class _Layer(NamedTuple):
    place: int  # index in the model
    norm_in: Tensor  # [H] float32
    qkv: Linear
    out: Linear
    norm_mid: Tensor  # [H] float32
    gate_up: Linear
    down: Linear
    extras: Extras
    norm_heads: tuple[Tensor, Tensor] | None  # of each query head and of each key head: [dim] float32


class LeanForward:
    """See engine.model.forward.Forward."""

    def __init__(
        self, model: Any, extras: dict[int, Extras], ops: LayerOps, single_row: NativeOps | None = None
    ) -> None:
        """extras: what each layer's attention asked for when it was probed. Copies the weights it packs.

        single_row: the kernel for linears of one row, see PackedLinear; None leaves them to the packed ones.
        """
        self._ops = ops
        self.held_twice = single_row is not None
        config, base = model.config, model.model
        self._heads = config.num_attention_heads
        self._kv_heads = config.num_key_value_heads
        self._eps = config.rms_norm_eps
        self._embedding = base.embed_tokens.weight.detach()  # [V, H]
        self._rotary = base.rotary_emb
        self._layers = [_layer(layer, i, extras[i], single_row) for i, layer in enumerate(base.layers)]
        self._depth = len(self._layers)
        self._norm = base.norm.weight.detach().float()
        self._head = make_linear([model.lm_head], single_row)

    @staticmethod
    def suits(model: Any) -> bool:
        """Whether a model is built of the blocks that this forward knows."""
        config = model.config
        silu = getattr(config, "hidden_act", None) == "silu"
        return config.model_type in _TYPES and silu and not getattr(config, "mlp_bias", False)

    def without_layers(self, skip: tuple[int, ...]) -> "LeanForward":
        """See Forward."""
        view = copy.copy(self)
        view._layers = [layer for layer in self._layers if layer.place not in skip]  # noqa: SLF001
        return view

    @property
    def ends(self) -> Ends:
        """See Forward."""
        return Ends(self._embedding, self._head)

    @torch.inference_mode()
    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        attention: AttentionContext,
        logit_rows: Tensor,
        taps: Taps | None = None,
    ) -> Tensor:
        """See Forward."""
        ops, eps = self._ops, self._eps
        hidden = F.embedding(tokens[0], self._embedding)  # [T, H], the residual stream; changed in place
        angles = self._angles(hidden, positions)
        delta = None  # what the last block adds to it
        wanted = () if taps is None else taps.layers
        for layer in self._layers:
            x = ops.add_rms_norm(hidden, delta, layer.norm_in, eps)
            if taps is not None and layer.place in wanted:
                taps.put(layer.place, hidden.clone())
            delta = layer.out(self._attend(layer, x, angles, attention))
            x = ops.add_rms_norm(hidden, delta, layer.norm_mid, eps)
            delta = layer.down(ops.silu_mul(layer.gate_up(x)))
        if taps is not None and taps.layers[-1] >= self._depth:
            whole = hidden if delta is None else hidden + delta
            taps.put(self._depth, whole)
            taps.put(self._depth + 1, ops.add_rms_norm(whole, None, self._norm, eps))
        last = None if delta is None else delta[logit_rows]
        return self._head(ops.add_rms_norm(hidden[logit_rows], last, self._norm, eps))

    def _attend(
        self, layer: _Layer, x: Tensor, angles: tuple[Tensor, Tensor], attention: AttentionContext
    ) -> Tensor:
        """[T, H] -> [T, heads * dim]."""
        heads, kv_heads = self._heads, self._kv_heads
        qkv = layer.qkv(x).view(len(x), heads + 2 * kv_heads, -1)  # [T, heads + 2 kv_heads, dim]
        if layer.norm_heads is None:
            rotated = self._ops.rotate(qkv[:, : heads + kv_heads], *angles)
            query, key = rotated[:, :heads], rotated[:, heads:]
        else:
            query = self._ops.rotate(self._norm_heads(qkv[:, :heads], layer.norm_heads[0]), *angles)
            key = self._ops.rotate(
                self._norm_heads(qkv[:, heads : heads + kv_heads], layer.norm_heads[1]), *angles
            )
        out = attention.attend(layer.place, query, key, qkv[:, heads + kv_heads :], layer.extras)
        return out.reshape(len(x), -1)

    def _norm_heads(self, x: Tensor, weight: Tensor) -> Tensor:
        """[T, heads, dim] -> the same shape, each head by itself."""
        rows = x.reshape(-1, x.shape[-1])
        return self._ops.add_rms_norm(rows, None, weight, self._eps).view(x.shape)

    def _angles(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine: [T, dim] float32 each, rounded as transformers rounds them."""
        cos, sin = self._rotary(hidden[None], positions)
        return cos[0].float(), sin[0].float()


def _layer(layer: Any, place: int, extras: Extras, native: NativeOps | None) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        place=place,
        norm_in=layer.input_layernorm.weight.detach().float(),
        qkv=make_linear([attention.q_proj, attention.k_proj, attention.v_proj], native),
        out=make_linear([attention.o_proj], native),
        norm_mid=layer.post_attention_layernorm.weight.detach().float(),
        gate_up=make_linear([mlp.gate_proj, mlp.up_proj], native),
        down=make_linear([mlp.down_proj], native),
        extras=extras,
        norm_heads=_head_norms(attention),
    )


def _head_norms(attention: Any) -> tuple[Tensor, Tensor] | None:
    if not hasattr(attention, "q_norm"):
        return None
    return attention.q_norm.weight.detach().float(), attention.k_norm.weight.detach().float()
