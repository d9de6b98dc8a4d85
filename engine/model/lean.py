"""A lean forward for the llama block, over the weights that transformers loaded.

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
from engine.model.packed import Linear, make_linear

_TYPES: Final = {"llama", "mistral", "qwen2"}


class _Layer(NamedTuple):
    place: int  # index in the model
    norm_in: Tensor  # [H] float32, times sqrt(H)
    qkv: Linear
    out: Linear
    norm_mid: Tensor  # [H] float32, times sqrt(H)
    gate_up: Linear
    down: Linear
    extras: Extras


class LeanForward:
    """See engine.model.forward.Forward."""

    def __init__(self, model: Any, extras: dict[int, Extras]) -> None:
        """extras: what each layer's attention asked for when it was probed. Copies the weights it packs."""
        config, base = model.config, model.model
        self._heads = config.num_attention_heads
        self._kv_heads = config.num_key_value_heads
        self._eps = config.rms_norm_eps
        self._embedding = base.embed_tokens.weight.detach()  # [V, H]
        self._rotary = base.rotary_emb
        self._layers = [_layer(layer, i, extras[i]) for i, layer in enumerate(base.layers)]
        self._norm = _scaled(base.norm.weight)
        self._head = make_linear([model.lm_head])

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

    @torch.inference_mode()
    def __call__(
        self, tokens: Tensor, positions: Tensor, attention: AttentionContext, logit_rows: Tensor
    ) -> Tensor:
        """See Forward."""
        hidden = F.embedding(tokens[0], self._embedding)  # [T, H]
        angles = self._angles(hidden, positions)
        for layer in self._layers:
            mixed = self._attend(layer, _rms_norm(hidden, layer.norm_in, self._eps), angles, attention)
            hidden = hidden + layer.out(mixed)
            gate, up = layer.gate_up(_rms_norm(hidden, layer.norm_mid, self._eps)).chunk(2, dim=-1)
            hidden = hidden + layer.down(F.silu(gate).mul_(up))
        return self._head(_rms_norm(hidden[logit_rows], self._norm, self._eps))

    def _attend(
        self, layer: _Layer, x: Tensor, angles: tuple[Tensor, Tensor], attention: AttentionContext
    ) -> Tensor:
        """[T, H] -> [T, heads * dim]."""
        heads, kv_heads = self._heads, self._kv_heads
        qkv = layer.qkv(x).view(len(x), heads + 2 * kv_heads, -1)  # [T, heads + 2 kv_heads, dim]
        rotated = _rotate(qkv[:, : heads + kv_heads], *angles)
        out = attention.attend(
            layer.place, rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :], layer.extras
        )
        return out.reshape(len(x), -1)

    def _angles(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine, and sine with its first half negated: [T, 1, dim] each."""
        cos, sin = self._rotary(hidden[None], positions)
        half = sin.shape[-1] // 2
        signed = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        return cos[0, :, None], signed[0, :, None]


def _rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotary embedding of [T, heads, dim]: x cos + rotate_half(x) sin, the sign of rotate_half being in the sine."""
    rotated: Tensor = torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), signed_sin)
    return rotated


def _rms_norm(x: Tensor, scaled_weight: Tensor, eps: float) -> Tensor:
    """[T, H] -> [T, H]. x / sqrt(mean(x^2) + eps) w, as x w sqrt(H) / sqrt(|x|^2 + H eps), in float32."""
    wide = x.float()
    squares: Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_()
    normed = wide * squares.add_(x.shape[-1] * eps).rsqrt_()
    return normed.mul_(scaled_weight).to(x.dtype)


def _scaled(weight: Tensor) -> Tensor:
    return weight.detach().float() * weight.shape[0] ** 0.5


def _layer(layer: Any, place: int, extras: Extras) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        place=place,
        norm_in=_scaled(layer.input_layernorm.weight),
        qkv=make_linear([attention.q_proj, attention.k_proj, attention.v_proj]),
        out=make_linear([attention.o_proj]),
        norm_mid=_scaled(layer.post_attention_layernorm.weight),
        gate_up=make_linear([mlp.gate_proj, mlp.up_proj]),
        down=make_linear([mlp.down_proj]),
        extras=extras,
    )
