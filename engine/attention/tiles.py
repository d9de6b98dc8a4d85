"""Attention by a kernel that reads the block tables, laid out in tensors alone.

What a step needs of its block tables is uploaded at once and never looked at by the host again: that is what lets a
CUDA graph attend, whose kernels find other numbers in the same places at each replay.

    spans        | a  a  a | b | c  c  c  c  c  c  c  c  c  c |
    rows         | 0  1  2 | 3 | 4  5  6  7  8  9 10 11 12 13 |
    tiles        |    0    | 1 |           2           |   3  |     at most 8 rows of one span each
    starts       | 0  0  0 | 2 | 3  3  3  3  3  3  3  3  3  3 |     where the row's table begins in `blocks`
    blocks       | 7  4 | 0 | 3  9  1 |                             tables, one after another
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from torch import Tensor

from engine.attention.paged import Extras
from engine.attention.plan import PREFILL_ROWS
from engine.batch import RaggedBatch, Span
from engine.kv.memory import KVMemory
from engine.transfer import upload

_DEPTH: Final = 8
_PREFILL_DEPTH: Final = 32  # more rows share the reading of a key


@dataclass(frozen=True, slots=True)
class Tiles:
    """Where each row's keys are, and which rows attend together."""

    positions: Tensor  # [T] int64
    slots: Tensor  # [T] int64
    starts: Tensor  # [T] int64
    first_rows: Tensor  # [G] int64
    rows: Tensor  # [G] int64, at most `depth`; 0: the tile is empty
    blocks: Tensor  # [M] int64
    depth: int
    block_size: int


class TileKernels(Protocol):
    """What the kernels do."""

    def write(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Store rows. key, value: [T, kv_heads, dim]; keys, values: [pool's slots, kv_heads, dim]; slots: [T]."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, tiles: Tiles, extras: Extras) -> Tensor:
        """query: [T, heads, dim] -> [T, heads, value_dim]."""


class TiledAttention:
    """One forward. See engine.attention.paged.AttentionContext."""

    def __init__(self, kernels: TileKernels, memory: KVMemory, tiles: Tiles) -> None:
        self._kernels = kernels
        self._memory = memory
        self._tiles = tiles

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, extras: Extras) -> Tensor:
        """See AttentionContext."""
        keys, values = self._memory.keys[layer], self._memory.values[layer]
        self._kernels.write(key, value, keys, values, self._tiles.slots)
        return self._kernels.attend(query, keys, values, self._tiles, extras)


def lay_out(batch: RaggedBatch, block_size: int) -> Tiles:
    """Cut a batch into tiles, of more rows where a prompt is computed."""
    long = any(len(span.tokens) > PREFILL_ROWS for span in batch.spans)
    return _tiles(batch, block_size, _PREFILL_DEPTH if long else _DEPTH, tiles=0)


def lay_out_padded(batch: RaggedBatch, block_size: int) -> Tiles:
    """The same in a shape that depends on the number of rows alone: as many tiles as rows, the last ones empty."""
    return _tiles(batch, block_size, _DEPTH, tiles=batch.rows)


def _tiles(batch: RaggedBatch, block_size: int, depth: int, tiles: int) -> Tiles:
    starts, blocks = _tables(batch.spans, block_size)
    cut = _cut(batch.spans, depth)
    cut += [(0, 0)] * (tiles - len(cut))
    columns = upload([starts, *zip(*cut, strict=True), blocks], batch.slots.device)
    row_starts, first_rows, rows, tables = columns
    return Tiles(batch.positions[0], batch.slots, row_starts, first_rows, rows, tables, depth, block_size)


def _tables(spans: Sequence[Span], block_size: int) -> tuple[list[int], list[int]]:
    """Each row's start in `blocks`, and `blocks`."""
    starts: list[int] = []
    blocks: list[int] = []
    for span in spans:
        starts += [len(blocks)] * len(span.tokens)
        blocks += span.blocks(block_size)
    return starts, blocks


def _cut(spans: Sequence[Span], depth: int) -> list[tuple[int, int]]:
    """First row and number of rows of each tile."""
    tiles, row = [], 0
    for span in spans:
        end = row + len(span.tokens)
        tiles += [(first, min(depth, end - first)) for first in range(row, end, depth)]
        row = end
    return tiles
