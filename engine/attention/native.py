"""Attention over the paged KV by the native kernel, which reads the block tables and copies no keys.

Long prompt chunks go through torch: there the work is matrix products, which oneDNN does better. So does whatever the
kernel does not know (soft caps, sinks, values of another width than keys).
"""

from functools import cached_property

from torch import Tensor

from engine.attention.paged import Extras, PagedAttention, attend_group
from engine.attention.plan import PREFILL_ROWS, Group, offsets, single_group
from engine.batch import RaggedBatch
from engine.kernels.native import NativeOps, NativeSpans
from engine.kv.memory import KVMemory


class NativePagedAttention:
    """One forward. See engine.attention.paged.AttentionContext."""

    def __init__(self, ops: NativeOps, memory: KVMemory, batch: RaggedBatch) -> None:
        self._ops = ops
        self._memory = memory
        self._batch = batch
        self._short: NativeSpans | None = None
        self._long: list[tuple[slice, Group]] = []
        self._split()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, extras: Extras) -> Tensor:
        """See AttentionContext."""
        if extras.softcap is not None or extras.sinks is not None or key.shape != value.shape:
            return self._torch.attend(layer, query, key, value, extras)
        query, key, value = _rows(query), _rows(key), _rows(value)
        if key.stride(0) != value.stride(0):
            key, value = key.contiguous(), value.contiguous()
        keys, values = self._memory.keys[layer], self._memory.values[layer]
        self._ops.write_kv(key, value, keys, values, self._batch.slots)
        out = query.new_empty(query.shape)
        if self._short is not None:
            self._ops.paged_attention(
                query, keys, values, out, spans=self._short, scaling=extras.scaling, window=extras.window or 0
            )
        for rows, group in self._long:
            out[rows] = attend_group(self._memory, layer, group, query, extras)
        return out

    @cached_property
    def _torch(self) -> PagedAttention:
        return PagedAttention(self._memory, self._batch)

    def _split(self) -> None:
        spans, size = self._batch.spans, self._memory.block_size
        starts = offsets(spans)
        short = [i for i, span in enumerate(spans) if len(span.tokens) <= PREFILL_ROWS]
        if short:
            self._short = NativeSpans(
                tables=[spans[i].blocks(size) for i in short],
                first_row=[starts[i] for i in short],
                rows=[len(spans[i].tokens) for i in short],
                end=[spans[i].end for i in short],
                block_size=size,
            )
        for i, span in enumerate(spans):
            if len(span.tokens) > PREFILL_ROWS:
                rows = slice(starts[i], starts[i] + len(span.tokens))
                self._long.append((rows, single_group(span, starts[i], size)))


def _rows(x: Tensor) -> Tensor:
    """The same rows with each one's heads one after another, as the kernel reads them; usually x itself."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
