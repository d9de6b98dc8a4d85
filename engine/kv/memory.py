"""The memory behind the block pool: keys and values of every layer, addressed by slot.

slot = block * block_size + offset          keys[layer]: [slots, kv_heads, key_dim]

Beside the keys of a slot lie the features that drafts read of its position (engine.draft.features): they are copied,
moved and cleared together.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from engine.kernels.memory import zeros
from engine.transfer import send


class LayerShape(NamedTuple):
    """What one attention layer stores per position."""

    kv_heads: int
    key_dim: int
    value_dim: int

    def bytes_per_position(self, dtype: torch.dtype) -> int:
        """Bytes of one position's key and value."""
        return self.kv_heads * (self.key_dim + self.value_dim) * dtype.itemsize


class KVMemory:
    """Keys and values of all sequences. Zeroed: rows beyond a sequence's end are masked, and must not be NaN.

    One block more than asked for, `scrap`: rows that only fill a batch up write there.
    """

    def __init__(
        self,
        layers: dict[int, LayerShape],
        blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        features: Mapping[str, int] = MappingProxyType({}),
        begin: int = 0,
    ) -> None:
        """features: numbers for each position, by who reads them. begin: the first place of every table that holds a
        key; nobody sees those before it.
        """
        slots = (blocks + 1) * block_size
        self.block_size = block_size
        self.scrap = blocks
        self.device = device
        self.begin = begin
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        alike: dict[tuple[int, int], list[tuple[dict[int, Tensor], int]]] = {}
        for index, shape in layers.items():
            for store, dim in ((self.keys, shape.key_dim), (self.values, shape.value_dim)):
                alike.setdefault((shape.kv_heads, dim), []).append((store, index))
        self.features = {name: zeros((slots, width), dtype, device) for name, width in features.items()}
        # What is alike lies in one tensor, [stores, slots, ...]: to move a position is one operation, not one a layer.
        self._stacks = [store[None] for store in self.features.values()]
        for (heads, dim), stores in alike.items():
            stack = zeros((len(stores), slots, heads, dim), dtype, device)
            self._stacks.append(stack)
            for (store, index), own in zip(stores, stack, strict=True):
                store[index] = own

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store rows. slots: [T]; key, value: [T, kv_heads, dim]."""
        self.keys[layer].index_copy_(0, slots, key)
        self.values[layer].index_copy_(0, slots, value)

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copy positions from slot to slot, all layers, as if at once: a target may be another's source."""
        if not moves:
            return
        sources, targets = send(moves, self.device).unbind(1)
        for stack in self._stacks:
            stack.index_copy_(1, targets, stack.index_select(1, sources))

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero these blocks, all layers: after a fault they may hold what is not a number."""
        slots = [slot for b in blocks for slot in range(b * self.block_size, (b + 1) * self.block_size)]
        for stack in self._stacks:
            stack[:, slots] = 0

    def copy(self, source: int, target: int) -> None:
        """Copy one block, all layers."""
        size = self.block_size
        there, here = slice(target * size, (target + 1) * size), slice(source * size, (source + 1) * size)
        for stack in self._stacks:
            stack[:, there] = stack[:, here]

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of B tables of equal length. blocks: [B, N] -> [B, kv_heads, N * block_size, dim] each."""
        return self._by_block(self.keys[layer], blocks), self._by_block(self.values[layer], blocks)

    def _by_block(self, store: Tensor, blocks: Tensor) -> Tensor:
        _, heads, dim = store.shape
        rows = store.view(-1, self.block_size * heads * dim).index_select(0, blocks.flatten())
        return rows.view(blocks.shape[0], -1, heads, dim).transpose(1, 2)
