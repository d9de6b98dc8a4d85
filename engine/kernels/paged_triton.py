"""Attention over block tables in Triton, and the write into the pool before it.

One program attends the rows of one tile (see engine.attention.tiles) for one key head. The query heads that share the
key head are rows too, so a key is read once for all of them. Keys come in pieces, and the softmax is carried along:
Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022.
"""

from typing import Any, Final

import triton
import triton.language as tl
from torch import Tensor

from engine.attention.paged import Extras
from engine.attention.tiles import Tiles

_KEYS: Final = 64  # keys in one piece
_SMALLEST: Final = 16  # the least that a matrix product takes on each side
# They are views into one upload: their alignment changes from step to step, and must not compile the kernel anew.
_COLUMNS: Final = ["positions", "roots", "starts", "tables", "sights", "first_rows", "rows", "ends", "blocks"]


class TritonKernels:
    """The kernels as `TiledAttention` calls them."""

    def write(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """See TileKernels."""
        key, value = _heads_apart(key), _heads_apart(value)
        rows, heads, dim = key.shape
        _write[rows, heads](
            key, value, keys, values, slots,
            key.stride(0), key.stride(1), value.stride(0), value.stride(1),
            HEADS=heads, DIM=dim, VALUE_DIM=value.shape[2],
            PADDED=triton.next_power_of_2(max(dim, value.shape[2])),
        )  # fmt: skip

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, tiles: Tiles, extras: Extras) -> Tensor:
        """See TileKernels."""
        query = _heads_apart(query)
        (heads, dim), (kv_heads, value_dim) = query.shape[1:], values.shape[1:]
        share = heads // kv_heads
        out = query.new_empty(query.shape[0], heads, value_dim)
        by = tiles.columns
        _attend[len(by.rows), kv_heads](
            query, keys, values, out,
            by.positions, by.roots, by.starts, by.tables, by.sights, by.first_rows, by.rows, by.ends, by.blocks,
            out if extras.sinks is None else extras.sinks,
            extras.scaling, extras.softcap or 1.0, query.stride(0), query.stride(1),
            WINDOW=extras.window or 0, CAPPED=extras.softcap is not None, SINKS=extras.sinks is not None,
            KV_HEADS=kv_heads, SHARE=share, BLOCK_SIZE=tiles.block_size, DIM=dim, VALUE_DIM=value_dim,
            PADDED=_padded(dim), VALUE_PADDED=_padded(value_dim), QUERIES=_padded(tiles.depth * share), KEYS=_KEYS,
        )  # fmt: skip
        return out


def _padded(size: int) -> int:
    return max(_SMALLEST, int(triton.next_power_of_2(size)))


def _heads_apart(x: Tensor) -> Tensor:
    """The same rows with each head's values one after another; usually x itself."""
    return x if x.stride(2) == 1 else x.contiguous()


@triton.jit(do_not_specialize_on_alignment=["slots"])  # type: ignore[untyped-decorator]
def _write(  # noqa: PLR0917
    key: Any,  # [T, HEADS, DIM], heads apart
    value: Any,  # [T, HEADS, VALUE_DIM]
    keys: Any,  # [slots, HEADS, DIM]
    values: Any,  # [slots, HEADS, VALUE_DIM]
    slots: Any,  # [T]
    key_row: Any,
    key_head: Any,
    value_row: Any,
    value_head: Any,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PADDED: tl.constexpr,
) -> None:
    """One program stores one row of one head."""
    row, head = tl.program_id(0), tl.program_id(1)
    place = tl.load(slots + row) * HEADS + head
    at = tl.arange(0, PADDED)
    stored = tl.load(key + row * key_row + head * key_head + at, mask=at < DIM)
    tl.store(keys + place * DIM + at, stored, mask=at < DIM)
    stored = tl.load(value + row * value_row + head * value_head + at, mask=at < VALUE_DIM)
    tl.store(values + place * VALUE_DIM + at, stored, mask=at < VALUE_DIM)


@triton.jit(do_not_specialize_on_alignment=_COLUMNS)  # type: ignore[untyped-decorator]
def _attend(  # noqa: PLR0915, PLR0917
    query: Any,  # [T, KV_HEADS * SHARE, DIM], heads apart
    keys: Any,  # [slots, KV_HEADS, DIM]
    values: Any,  # [slots, KV_HEADS, VALUE_DIM]
    out: Any,  # [T, KV_HEADS * SHARE, VALUE_DIM]
    positions: Any,
    roots: Any,
    starts: Any,
    tables: Any,
    sights: Any,
    first_rows: Any,
    rows: Any,
    ends: Any,
    blocks: Any,
    sinks: Any,  # [KV_HEADS * SHARE]; read only with SINKS
    scaling: Any,
    softcap: Any,
    query_row: Any,
    query_head: Any,
    WINDOW: tl.constexpr,  # 0: none
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
) -> None:
    """One program attends one tile for one key head; lane i is row i // SHARE of the tile."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    count = tl.load(rows + tile)
    first = tl.load(first_rows + tile)
    root, start, table = tl.load(roots + first), tl.load(starts + first), tl.load(tables + first)
    lane = tl.arange(0, QUERIES)
    used = lane < count * SHARE
    row = first + tl.where(used, lane // SHARE, 0)
    head = kv_head * SHARE + lane % SHARE
    position, sight = tl.load(positions + row), tl.load(sights + row)
    dims, value_dims = tl.arange(0, PADDED), tl.arange(0, VALUE_PADDED)
    at = row[:, None] * query_row + head[:, None] * query_head + dims[None, :]
    q = tl.load(query + at, mask=used[:, None] & (dims < DIM)[None, :], other=0.0)
    end = tl.load(ends + tile)  # an empty tile has no keys
    begin = end * 0
    if WINDOW > 0:  # a key's place is its position or more
        begin = tl.maximum(tl.min(position, 0) - WINDOW + 1, 0) // KEYS * KEYS
    # A finite start: where a piece holds nothing that a row sees, exp(-inf - -inf) would not be a number.
    top = tl.full([QUERIES], -1e30, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    if SINKS:
        top = tl.load(sinks + head).to(tl.float32)
        total += 1.0
    sums = tl.zeros([QUERIES, VALUE_PADDED], tl.float32)
    for piece in range(begin, end, KEYS):
        key = piece + tl.arange(0, KEYS)
        there = key < end
        block = tl.load(blocks + table + key // BLOCK_SIZE, mask=there, other=0)
        place = (block * BLOCK_SIZE + key % BLOCK_SIZE) * KV_HEADS + kv_head
        at = place[:, None] * DIM + dims[None, :]
        k = tl.load(keys + at, mask=there[:, None] & (dims < DIM)[None, :], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scaling
        if CAPPED:  # tanh(x) = 2 sigmoid(2 x) - 1
            scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
        own = key - start  # the span's own rows have theirs from 0 on
        ours = there & (own >= 0)
        stands = tl.where(ours, tl.load(positions + root + own, mask=ours, other=0), key)
        distance = position[:, None] - stands[None, :]
        shown = (sight[:, None] >> tl.minimum(tl.maximum(own, 0), 63)[None, :]) & 1
        seen = (distance >= 0) & there[None, :] & ((own < 0)[None, :] | (sight == 0)[:, None] | (shown != 0))
        if WINDOW > 0:
            seen = seen & (distance < WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(top - higher)
        total = total * fade + tl.sum(weights, 1)
        at = place[:, None] * VALUE_DIM + value_dims[None, :]
        v = tl.load(values + at, mask=there[:, None] & (value_dims < VALUE_DIM)[None, :], other=0.0)
        sums = sums * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        top = higher
    at = (row[:, None] * (KV_HEADS * SHARE) + head[:, None]) * VALUE_DIM + value_dims[None, :]
    tl.store(
        out + at,
        (sums / tl.where(used, total, 1.0)[:, None]).to(out.dtype.element_ty),
        mask=used[:, None] & (value_dims < VALUE_DIM)[None, :],
    )
