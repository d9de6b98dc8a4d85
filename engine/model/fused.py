"""The lean forward as one native call, over squeezed weights: what few rows cost is reading the weights, so read less.

`engine.model.lean` is the specification, `engine/kernels/decoder.h` the code. Weights are held once, in twelve bits
each and without loss (`engine.model.squeezed`); one layout serves any number of rows.
"""

import copy
import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from engine.attention.native import NativePagedAttention
from engine.attention.paged import AttentionContext, Extras
from engine.kernels.native import NativeOps
from engine.kernels.structures import Decoder, DecoderLayer, Step
from engine.kv.memory import KVMemory
from engine.model.ends import Ends
from engine.model.lean import LeanForward
from engine.model.squeezed import Arena, Squeezed, can_squeeze, squeezed_bytes, squeezed_linear
from engine.model.taps import Taps

TILE = 16


class FusedForward:
    """See engine.model.forward.Forward. Called with native attention only."""

    def __init__(self, model: Any, extras: dict[int, Extras], native: NativeOps) -> None:
        """extras: what each layer's attention asked for when it was probed. Copies the weights it squeezes."""
        config, base = model.config, model.model
        self._native = native
        self._embedding: Tensor = base.embed_tokens.weight.detach()  # [V, H]
        self._norm: Tensor = base.norm.weight.detach().float()
        self._angles = Angles(base.rotary_emb, self._embedding.dtype)
        linears = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
        arena = Arena(sum(squeezed_bytes(*weight.shape) for weight in linears))
        squeeze = partial(Squeezed, native, arena)
        self._layers = [_Layer(layer, i, extras[i], squeeze) for i, layer in enumerate(base.layers)]
        self._head = squeeze(model.lm_head.weight)
        self._sizes = {
            "hidden": config.hidden_size,
            "heads": config.num_attention_heads,
            "kv_heads": config.num_key_value_heads,
            "intermediate": config.intermediate_size,
            "eps": config.rms_norm_eps,
        }
        self._bound: _Bound | None = None

    @staticmethod
    def suits(model: Any, native: NativeOps) -> bool:
        """Whether a model is built of blocks, and of sizes, that this forward knows, on a processor that can."""
        if not (native.squeezes and LeanForward.suits(model) and model.config.intermediate_size % TILE == 0):
            return False
        if hasattr(model.model.layers[0].self_attn, "q_norm"):
            return False
        linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
        if not linears:  # they are quantised
            return False
        return all(can_squeeze(linear.weight) for linear in linears)

    @property
    def linears(self) -> list[Squeezed]:
        """All of the model's, in the order of a forward."""
        return [*(linear for layer in self._layers for linear in layer.linears), self._head]

    @property
    def weight_bytes(self) -> int:
        """Memory of weights and embedding."""
        linears = [self._head, *(linear for layer in self._layers for linear in layer.linears)]
        return (
            sum(linear.bytes for linear in linears) + self._embedding.numel() * self._embedding.element_size()
        )

    def without_layers(self, skip: tuple[int, ...]) -> "FusedForward":
        """See Forward."""
        view = copy.copy(self)
        view._layers = [layer for layer in self._layers if layer.place not in skip]  # noqa: SLF001
        view._bound = None  # noqa: SLF001
        return view

    @property
    def ends(self) -> Ends:
        """See Forward."""
        return Ends(self._embedding, partial(squeezed_linear, self._native, self._head))

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
        assert isinstance(attention, NativePagedAttention), (
            "this forward attends itself, over the block tables"
        )
        if self._bound is None or self._bound.memory is not attention.memory:
            self._bound = self._bind(attention.memory)
        bound = self._bound
        spans = attention.spans
        self._angles.reach(bound.decoder, spans.longest)
        logits = self._embedding.new_empty(len(logit_rows), len(self._embedding))
        step = Step(
            tokens.data_ptr(), positions.data_ptr(), attention.slots.data_ptr(), tokens.shape[1], spans.structure,
            logit_rows.data_ptr(), len(logit_rows), logits.data_ptr(),
        )  # fmt: skip
        if taps is None:
            self._native.forward(bound.decoder, step)
        else:
            self._run_tapped(bound.decoder, step, taps)
        return logits

    def _run_tapped(self, decoder: Decoder, step: Step, taps: Taps) -> None:
        layers = torch.tensor(taps.layers)
        found = self._embedding.new_empty(len(layers), step.rows, decoder.hidden)
        step.taps, step.tap_count, step.tapped = layers.data_ptr(), len(layers), found.data_ptr()
        self._native.forward(decoder, step)
        for layer, hidden in zip(taps.layers, found, strict=True):
            taps.put(layer, hidden)

    def _bind(self, memory: KVMemory) -> "_Bound":
        layers = (DecoderLayer * len(self._layers))(*(layer.structure(memory) for layer in self._layers))
        decoder = Decoder(
            layers=ctypes.addressof(layers),
            count=len(layers),
            embedding=self._embedding.data_ptr(),
            norm=self._norm.data_ptr(),
            head=self._head.structure,
            dim=self._angles.dim,
            block_size=memory.block_size,
            **self._sizes,
        )
        return _Bound(memory, layers, decoder)


class _Bound:
    """The structures for one KV memory, and what they point to."""

    def __init__(self, memory: KVMemory, layers: Any, decoder: Decoder) -> None:
        self.memory = memory
        self.layers = layers
        self.decoder = decoder


class _Layer:
    """One decoder layer's weights."""

    def __init__(self, layer: Any, place: int, extras: Extras, squeeze: Callable[..., Squeezed]) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.place = place  # index in the model
        self._extras = extras
        self._norm_in = layer.input_layernorm.weight.detach().float()
        self._norm_mid = layer.post_attention_layernorm.weight.detach().float()
        self._qkv = squeeze(*joined([attention.q_proj, attention.k_proj, attention.v_proj]))
        self._out = squeeze(attention.o_proj.weight, attention.o_proj.bias)
        self._gate_up = squeeze(interleaved(mlp.gate_proj.weight, mlp.up_proj.weight))
        self._down = squeeze(mlp.down_proj.weight)

    @property
    def linears(self) -> tuple[Squeezed, ...]:
        """All of its linears."""
        return self._qkv, self._out, self._gate_up, self._down

    def structure(self, memory: KVMemory) -> DecoderLayer:
        """As the kernel takes it."""
        qkv, out, gate_up, down = (linear.structure for linear in self.linears)
        return DecoderLayer(
            self._norm_in.data_ptr(), self._norm_mid.data_ptr(), qkv, out, gate_up, down,
            memory.keys[self.place].data_ptr(), memory.values[self.place].data_ptr(),
            self._extras.window or 0, self._extras.scaling,
        )  # fmt: skip


class Angles:
    """Cosines and sines by position, as transformers rounds them; grows with the longest text seen."""

    def __init__(self, rotary: Any, dtype: torch.dtype) -> None:
        self._rotary = rotary
        self._dtype = dtype
        self._cosine, self._sine = self._table(1024)

    @property
    def dim(self) -> int:
        """Of a head."""
        return self._cosine.shape[1]

    def reach(self, decoder: Decoder, positions: int) -> None:
        """Make the tables long enough, and let the decoder point to them."""
        if positions > len(self._cosine):
            self._cosine, self._sine = self._table(max(positions, 2 * len(self._cosine)))
        decoder.cosine, decoder.sine = self._cosine.data_ptr(), self._sine.data_ptr()

    def _table(self, positions: int) -> tuple[Tensor, Tensor]:
        cosine, sine = self._rotary(torch.empty(0, dtype=self._dtype), torch.arange(positions)[None])
        return cosine[0].float().contiguous(), sine[0].float().contiguous()


def joined(linears: list[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of linears of one input as one, their outputs one after another."""
    bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
    return torch.cat([linear.weight for linear in linears]), bias


def interleaved(gate: Tensor, up: Tensor) -> Tensor:
    """[I, H] each -> [2 I, H]: sixteen gates, then the sixteen of up that they are for."""
    return torch.stack([gate.view(-1, TILE, gate.shape[1]), up.view(-1, TILE, up.shape[1])], dim=1).flatten(
        0, 2
    )
