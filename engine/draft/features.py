"""What drafts read of the target's forward, kept beside its keys.

A head goes on from what the target has understood of a position. That is written into paged memory for every row that
the target computes, in the slot of its key, and copied, moved and cleared with it. So a feature is there exactly where
a key is: hits of the prefix cache, shared blocks and rollbacks need no care of their own, and a head that was not asked
for a while finds all that it missed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from engine.batch import RaggedBatch
from engine.kv.memory import KVMemory
from engine.model.taps import Taps


@dataclass(frozen=True, slots=True)
class Reads:
    """What one proposer reads."""

    layers: tuple[int, ...]  # see engine.model.taps
    width: int  # F
    features: Callable[[Tensor], Tensor]  # [T, len(layers) * H] -> [T, F], what is kept of it


class Features:
    """What all proposers of an engine read, by their names."""

    def __init__(self, memory: KVMemory, reads: Mapping[str, Reads]) -> None:
        self._memory = memory
        self._reads = reads
        self._layers = sorted({layer for each in reads.values() for layer in each.layers})

    def taps(self) -> Taps | None:
        """To be filled by the target's next forward; None where nobody reads anything."""
        return Taps(self._layers) if self._reads else None

    def keep(self, batch: RaggedBatch, taps: Taps | None) -> None:
        """Write what the forward of this batch said, in the slots of its rows."""
        if taps is None:
            return
        for name, reads in self._reads.items():
            self._memory.features[name].index_copy_(0, batch.slots, reads.features(taps.of(reads.layers)))
