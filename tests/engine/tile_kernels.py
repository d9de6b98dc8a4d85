"""What the tile kernels do, in torch: each row by itself, and like them from tensors alone."""

import torch
from torch import Tensor

from engine.attention.paged import Extras
from engine.attention.tiles import Tiles


class TorchTiles:
    """See TileKernels. `reach` bounds the positions of one sequence, so that shapes depend on no table."""

    def __init__(self, reach: int) -> None:
        self._reach = reach

    def write(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        keys.index_copy_(0, slots, key)
        values.index_copy_(0, slots, value)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, tiles: Tiles, extras: Extras) -> Tensor:
        assert (extras.softcap, extras.sinks) == (None, None)
        by = tiles.columns
        key = torch.arange(self._reach)
        entry = (by.tables[:, None] + key // tiles.block_size).clamp(max=len(by.blocks) - 1)  # [T, S]
        slots = by.blocks[entry] * tiles.block_size + key % tiles.block_size
        own = key - by.starts[:, None]  # a key's row within the span, from 0 on
        row = (by.roots[:, None] + own.clamp(min=0)).clamp(max=len(by.positions) - 1)
        distance = by.positions[:, None] - torch.where(own >= 0, by.positions[row], key)
        branch = (by.sights[:, None] == 0) | (own < 0) | ((by.sights[:, None] >> own.clamp(0, 63)) & 1).bool()
        there = own <= torch.arange(len(by.positions))[:, None] - by.roots[:, None]
        seen = branch & there & (distance >= 0) & (distance < (extras.window or self._reach))
        share = query.shape[1] // keys.shape[1]
        scores = torch.einsum("thd,tshd->ths", query, keys[slots].repeat_interleave(share, 2))
        scores = (scores * extras.scaling).masked_fill(~seen[:, None], -torch.inf)
        return torch.einsum("ths,tshd->thd", scores.softmax(-1), values[slots].repeat_interleave(share, 2))
