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
        key = torch.arange(self._reach)
        entry = (tiles.starts[:, None] + key // tiles.block_size).clamp(max=len(tiles.blocks) - 1)  # [T, S]
        slots = tiles.blocks[entry] * tiles.block_size + key % tiles.block_size
        distance = tiles.positions[:, None] - key
        seen = (distance >= 0) & (distance < (extras.window or self._reach))
        share = query.shape[1] // keys.shape[1]
        scores = torch.einsum("thd,tshd->ths", query, keys[slots].repeat_interleave(share, 2))
        scores = (scores * extras.scaling).masked_fill(~seen[:, None], -torch.inf)
        return torch.einsum("ths,tshd->thd", scores.softmax(-1), values[slots].repeat_interleave(share, 2))
