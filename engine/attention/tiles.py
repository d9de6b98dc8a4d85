"""Attention by a kernel that reads the block tables, laid out in tensors alone.

What a step needs of its block tables is uploaded at once and never looked at by the host again: that is what lets a
CUDA graph attend, whose kernels find other numbers in the same places at each replay.

    spans        | a  a  a | b | c  c  c  c  c  c  c  c  c  c |
    rows         | 0  1  2 | 3 | 4  5  6  7  8  9 10 11 12 13 |
    tiles        |    0    | 1 |           2           |   3  |     at most 8 rows of one span each
    roots        | 0  0  0 | 3 | 4  4  4  4  4  4  4  4  4  4 |     the span's first row
    starts       | 9  9  9 | 4 | 0  0  0  0  0  0  0  0  0  0 |     the place of its key
    tables       | 0  0  0 | 2 | 3  3  3  3  3  3  3  3  3  3 |     where the row's block table begins in `blocks`
    blocks       | 7  4 | 0 | 3  9  1 |                             tables, one after another

A key's place in its table is its position, but for the rows of a tree: their keys' positions are the rows' own, and
`sights` has whom they see.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from torch import Tensor

from engine.attention.paged import Extras
from engine.attention.plan import PREFILL_ROWS
from engine.batch import RaggedBatch, Span
from engine.draft.shape import sights
from engine.kv.memory import KVMemory
from engine.transfer import upload

_DEPTH: Final = 8
_PREFILL_DEPTH: Final = 32  # more rows share the reading of a key


class Columns(NamedTuple):
    """Where each row's keys are, and which rows attend together. All int64."""

    positions: Tensor  # [T]
    slots: Tensor  # [T]
    roots: Tensor  # [T]
    starts: Tensor  # [T]
    tables: Tensor  # [T]
    sights: Tensor  # [T], bit r: sees row r of its span; 0: a chain's row, which sees all before it
    first_rows: Tensor  # [G]
    rows: Tensor  # [G], at most `depth`; 0: the tile is empty
    ends: Tensor  # [G], the place behind the last key that the tile sees
    blocks: Tensor  # [M]


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles of one forward."""

    columns: Columns
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
        self._kernels.write(key, value, keys, values, self._tiles.columns.slots)
        return self._kernels.attend(query, keys, values, self._tiles, extras)


def lay_out(batch: RaggedBatch, block_size: int) -> Tiles:
    """Cut a batch into tiles, of more rows where a prompt is computed."""
    long = any(len(span.tokens) > PREFILL_ROWS for span in batch.spans)
    return _tiles(batch, block_size, _PREFILL_DEPTH if long else _DEPTH, tiles=0)


def lay_out_padded(batch: RaggedBatch, block_size: int) -> Tiles:
    """The same in a shape that depends on the number of rows alone: as many tiles as rows, the last ones empty."""
    return _tiles(batch, block_size, _DEPTH, tiles=batch.rows)


def _tiles(batch: RaggedBatch, block_size: int, depth: int, tiles: int) -> Tiles:
    by_row, blocks = _rows(batch.spans, block_size)
    by_tile = _cut(batch.spans, depth)
    by_tile += [(0, 0, 0)] * (tiles - len(by_tile))
    columns = upload([*zip(*by_row, strict=True), *zip(*by_tile, strict=True), blocks], batch.slots.device)
    return Tiles(Columns(batch.positions[0], batch.slots, *columns), depth, block_size)


def _rows(spans: Sequence[Span], block_size: int) -> tuple[list[tuple[int, int, int, int]], list[int]]:
    """Root, start, table and sight of each row; all tables' blocks."""
    rows: list[tuple[int, int, int, int]] = []
    blocks: list[int] = []
    for span in spans:
        count, root = len(span.tokens), len(rows)
        seen = [0] * count if span.parents is None else _signed(sights(span.parents))
        rows += [(root, span.start, len(blocks), sight) for sight in seen]
        blocks += span.blocks(block_size)
    return rows, blocks


def _signed(bits: Sequence[int]) -> list[int]:
    """Sets of 64 bits as int64 holds them."""
    return [each - (1 << 64) if each >> 63 else each for each in bits]


def _cut(spans: Sequence[Span], depth: int) -> list[tuple[int, int, int]]:
    """First row, number of rows and end of each tile."""
    tiles, root = [], 0
    for span in spans:
        length = len(span.tokens)
        for first in range(0, length, depth):
            last = min(first + depth, length)
            end = span.start + last  # a row of a tree sees none behind it either
            tiles.append((root + first, last - first, end))
        root += length
    return tiles
