"""An EAGLE-3 head in native calls over squeezed weights: a level, or whole drafts without Python in between.

`engine.heads.eagle` is the specification, `engine/kernels/eagle.h` the code.
"""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from engine.attention.native import NativePagedAttention
from engine.attention.paged import AttentionContext
from engine.batch import RaggedBatch
from engine.heads.eagle import EagleHead, Said
from engine.kernels import structures
from engine.kernels.native import NativeOps, NativeSpans
from engine.kv.memory import KVMemory
from engine.model.fused import TILE, Angles, interleaved, joined
from engine.model.squeezed import Arena, Squeezed, can_squeeze, squeezed_bytes, squeezed_linear


class _Input(NamedTuple):
    """Rows of a level."""

    tokens: Tensor  # [1, T] int64
    hidden: Tensor  # [T, H]
    positions: Tensor  # [1, T] int64
    slots: Tensor  # [T] int64
    rows: Tensor  # [R] int64


class Growth(NamedTuple):
    """What is to grow behind a text: a chain if it is one node wide."""

    levels: int  # one at least
    nodes: int  # at most, of all levels together
    width: int  # how many nodes of a level grow, with as many children each: width * levels <= nodes


class Guesses(NamedTuple):
    """What has grown, level by level."""

    tokens: list[int]  # the target's
    parents: list[int]  # see engine.draft.shape


class FusedHead:
    """See engine.heads.eagle.HeadForward. Called with native attention only, one row of each chain wanted: its last."""

    def __init__(self, head: EagleHead, targets: Tensor | None, native: NativeOps) -> None:
        """targets: see EagleFiles. Copies the weights."""
        layer, attention, mlp = head.layer, head.layer.self_attn, head.layer.mlp
        self._native = native
        self._embedding = head.embedding.detach()  # [V, H]
        self._vocabulary = head.shape.vocabulary
        self._targets = torch.arange(self._vocabulary) if targets is None else targets.contiguous()
        self._norms = [
            norm.weight.detach().float()
            for norm in (layer.input_layernorm, layer.hidden_norm, layer.post_attention_layernorm, head.norm)
        ]
        self._input_norm = head.input_norm if head.shape.norm_before_fc else None
        weights = [
            joined([attention.q_proj, attention.k_proj, attention.v_proj]),
            (attention.o_proj.weight, attention.o_proj.bias),
            (interleaved(mlp.gate_proj.weight, mlp.up_proj.weight), None),
            (mlp.down_proj.weight, None),
            (head.lm_head.weight, None),
            (head.fc.weight, None),
        ]
        arena = Arena(sum(squeezed_bytes(*weight.shape) for weight, _ in weights))
        self._linears = [Squeezed(native, arena, weight, bias) for weight, bias in weights]
        self._angles = Angles(head.rotary, self._embedding.dtype)
        self._shape = head.shape
        self._bound: tuple[KVMemory, structures.EagleHead, structures.DecoderLayer] | None = None

    @staticmethod
    def suits(head: EagleHead, native: NativeOps) -> bool:
        """Whether a head is of a kind and of sizes that the kernels know."""
        if head.shape.version != 3 or not native.squeezes or not hasattr(head, "lm_head"):
            return False
        linears = [module for module in head.modules() if isinstance(module, nn.Linear)]
        return head.shape.block.intermediate_size % TILE == 0 and all(
            can_squeeze(linear.weight) for linear in linears
        )

    @property
    def weight_bytes(self) -> int:
        """Memory of its weights, the embedding aside."""
        return sum(linear.bytes for linear in self._linears)

    @torch.inference_mode()
    def features(self, taps: Tensor) -> Tensor:
        """See EagleHead."""
        normed = taps if self._input_norm is None else self._input_norm(taps)
        return squeezed_linear(self._native, self._linears[-1], normed)

    @torch.inference_mode()
    def __call__(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, attention: AttentionContext, rows: Tensor
    ) -> Said:
        """See HeadForward."""
        assert isinstance(attention, NativePagedAttention), "this head attends itself, over the block tables"
        head = self._head(attention.memory, attention.spans.longest)
        said = self._room(len(rows))
        step = _step(_Input(tokens, hidden, positions, attention.slots, rows), attention.spans, said)
        self._native.eagle_step(head, step)
        return said

    @torch.inference_mode()
    def drafts(
        self, batch: RaggedBatch, hidden: Tensor, memory: KVMemory, growths: Sequence[Growth]
    ) -> list[Guesses]:
        """Behind each span's text, what the head finds likeliest.

        Places for `nodes` tokens behind the spans must be reserved in their tables. engine.draft.tree is the
        specification.
        """
        spans, most = _whole_tables(batch, memory), max(growth.nodes for growth in growths)
        head = self._head(memory, spans.longest + max(growth.levels for growth in growths))
        said = self._room(sum(growth.width for growth in growths))
        rows = _Input(batch.tokens, hidden, batch.positions, batch.slots, batch.logit_rows)
        columns = [_numbers(column) for column in zip(*growths, strict=True)]
        tokens, parents, counts = (_numbers([0] * count * len(growths)) for count in (most, most, 1))
        levels, nodes, widths, *found = map(ctypes.addressof, [*columns, tokens, parents, counts])
        asked = structures.EagleDrafts(levels, nodes, widths, most, *found)
        self._native.eagle_drafts(head, _step(rows, spans, said), asked)
        ends = [(b * most, b * most + count) for b, count in enumerate(counts)]
        return [Guesses(tokens[start:end], parents[start:end]) for start, end in ends]

    def _room(self, rows: int) -> Said:
        hidden = self._embedding.new_empty(rows, self._shape.hidden)
        return Said(hidden, self._embedding.new_empty(rows, self._vocabulary))

    def _head(self, memory: KVMemory, positions: int) -> structures.EagleHead:
        """The structures for one KV memory and texts of so many positions."""
        if self._bound is None or self._bound[0] is not memory:
            self._bound = (memory, *self._bind(memory))
        head = self._bound[1]
        self._angles.reach(head.decoder, positions)
        return head

    def _bind(self, memory: KVMemory) -> tuple[structures.EagleHead, structures.DecoderLayer]:
        token, hidden, middle, last = (norm.data_ptr() for norm in self._norms)
        qkv, out, gate_up, down, said, _ = (linear.structure for linear in self._linears)
        block = self._shape.block
        layer = structures.DecoderLayer(
            None, middle, qkv, out, gate_up, down, memory.keys[0].data_ptr(), memory.values[0].data_ptr(),
            0, block.head_dim**-0.5,
        )  # fmt: skip
        decoder = structures.Decoder(
            layers=ctypes.addressof(layer),
            count=1,
            embedding=self._embedding.data_ptr(),
            norm=last,
            head=said,
            hidden=self._shape.hidden,
            heads=block.num_attention_heads,
            kv_heads=block.num_key_value_heads,
            dim=block.head_dim,
            intermediate=block.intermediate_size,
            block_size=memory.block_size,
            eps=block.rms_norm_eps,
        )
        head = structures.EagleHead(
            decoder, token, hidden, self._shape.norm_before_residual, self._shape.norm_output,
            self._targets.data_ptr(),
        )  # fmt: skip
        return head, layer


def _numbers(values: Sequence[int]) -> "ctypes.Array[ctypes.c_int64]":
    """As the library takes them, in a fraction of the time that a tensor takes to be made."""
    return (ctypes.c_int64 * len(values))(*values)


def _step(given: _Input, spans: NativeSpans, said: Said) -> structures.EagleStep:
    """Points into the tensors."""
    tokens, hidden, positions, slots, rows = (each.data_ptr() for each in given)
    step = structures.Step(
        tokens,
        positions,
        slots,
        len(given.slots),
        spans.structure,
        rows,
        len(given.rows),
        said.logits.data_ptr(),
    )
    return structures.EagleStep(step, hidden, said.hidden.data_ptr())


def _whole_tables(batch: RaggedBatch, memory: KVMemory) -> NativeSpans:
    """With all blocks of each table, those behind the span's end too."""
    rows = [len(span.tokens) for span in batch.spans]
    ends = [span.end for span in batch.spans]
    first, total = [], 0
    for count in rows:
        first.append(total)
        total += count
    return NativeSpans(
        [span.table.blocks for span in batch.spans], first, rows, ends,
        block_size=memory.block_size, positions=batch.positions, sights=None, begin=memory.begin,
    )  # fmt: skip
