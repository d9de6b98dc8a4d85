"""Attention over the paged KV by the native kernel, which reads the block tables and copies no keys.

Long prompt chunks go through torch: there the work is matrix products, which oneDNN does better. So does whatever the
kernel does not know (soft caps, sinks, values of another width than keys).
"""

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from engine.attention.paged import Extras, PagedAttention, attend_group
from engine.attention.plan import PREFILL_ROWS, Group, offsets, single_group
from engine.batch import RaggedBatch, Span
from engine.draft.shape import sights
from engine.kernels.native import NativeOps, NativeSpans
from engine.kv.memory import KVMemory


class NativePagedAttention:
    """One forward. See engine.attention.paged.AttentionContext."""

    def __init__(self, ops: NativeOps, memory: KVMemory, batch: RaggedBatch) -> None:
        self._ops = ops
        self.memory = memory
        self._batch = batch

    @property
    def slots(self) -> Tensor:
        """[T] int64: where each row's key and value go."""
        return self._batch.slots

    @cached_property
    def spans(self) -> NativeSpans:
        """All spans, for a forward that attends itself."""
        return self._native_spans(range(len(self._batch.spans)))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, extras: Extras) -> Tensor:
        """See AttentionContext."""
        if extras.softcap is not None or extras.sinks is not None or key.shape != value.shape:
            return self._torch.attend(layer, query, key, value, extras)
        query, key, value = _rows(query), _rows(key), _rows(value)
        if key.stride(0) != value.stride(0):
            key, value = key.contiguous(), value.contiguous()
        keys, values = self.memory.keys[layer], self.memory.values[layer]
        self._ops.write_kv(key, value, keys, values, self._batch.slots)
        out = query.new_empty(query.shape)
        if self._short is not None:
            self._ops.paged_attention(
                query, keys, values, out, spans=self._short, scaling=extras.scaling, window=extras.window or 0
            )
        for rows, group in self._long:
            out[rows] = attend_group(self.memory, layer, group, query, extras)
        return out

    @cached_property
    def _torch(self) -> PagedAttention:
        return PagedAttention(self.memory, self._batch)

    @cached_property
    def _short(self) -> NativeSpans | None:
        short = [i for i, span in enumerate(self._batch.spans) if len(span.tokens) <= PREFILL_ROWS]
        return self._native_spans(short) if short else None

    @cached_property
    def _long(self) -> list[tuple[slice, Group]]:
        spans, size = self._batch.spans, self.memory.block_size
        starts = offsets(spans)
        return [
            (slice(start, start + len(span.tokens)), single_group(span, start, size))
            for span, start in zip(spans, starts, strict=True)
            if len(span.tokens) > PREFILL_ROWS
        ]

    def _native_spans(self, which: Iterable[int]) -> NativeSpans:
        spans, size = self._batch.spans, self.memory.block_size
        starts = offsets(spans)
        which = list(which)
        return NativeSpans(
            tables=[spans[i].blocks(size) for i in which],
            first_row=[starts[i] for i in which],
            rows=[len(spans[i].tokens) for i in which],
            end=[spans[i].end for i in which],
            block_size=size,
            positions=self._batch.positions,
            sights=_sights(spans) if self._batch.has_trees else None,
            begin=self.memory.begin,
        )


def _sights(spans: Sequence[Span]) -> Tensor:
    """[T] int64: what each row of a tree sees of its span, as bits; 0 for rows of chains."""
    bits: list[int] = []
    for span in spans:
        bits += [0] * len(span.tokens) if span.parents is None else sights(span.parents)
    return torch.from_numpy(np.array(bits, dtype=np.uint64).view(np.int64))


def _rows(x: Tensor) -> Tensor:
    """The same rows with each one's heads one after another, as the kernel reads them; usually x itself."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
