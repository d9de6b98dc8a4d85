"""What it is worth to draft without some layers: tokens a second over plain decoding, with one running request."""

import statistics
import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from engine.batch import Span
from engine.kv.memory import KVMemory
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.forward import Forward
from engine.model.loader import LoadedModel
from engine.model.runner import Runner
from policies.settings import PolicySettings

_LONGEST_DRAFT: Final = PolicySettings().k_max
_ROW_COST: Final = 0.01  # of verifying one more row, about
_TIMES: Final = 15  # each of the two is timed so often, in turns


class Best(NamedTuple):
    """The draft length with the most tokens a second."""

    k: int
    speedup: float


class Costs(NamedTuple):
    """Of drafting one token, in plain decode steps."""

    layers: int
    rest: float  # the share of a step that no layer takes: embedding and head

    @classmethod
    def measured(cls, target: LoadedModel) -> Self:
        """From steps of one row, of the whole target and of it without any layer."""
        layers = len(target.shapes)
        runner = Runner(KVMemory(target.shapes, 1, 16, target.dtype, target.device), target.kernels)
        table = BlockTable(BlockPool(1, 16))
        table.reserve(1)
        forwards = (target.forward, target.forward.without_layers(tuple(range(layers))))
        pairs = [[_seconds(runner, table, forward) for forward in forwards] for _ in range(_TIMES)]
        whole, empty = (statistics.median(times) for times in zip(*pairs, strict=True))
        return cls(layers, min(empty / whole, 1.0))

    def of(self, skipped: int) -> float:
        """With so many layers left out."""
        return self.rest + (1 - self.rest) * (self.layers - skipped) / self.layers


def best(acceptance: Sequence[float], cost: float) -> Best:
    """acceptance: conditional, by position; the last one holds beyond. k is 1 at least: a draft is what is judged."""
    lengths = range(1, _LONGEST_DRAFT + 1)
    return max((Best(k, _speedup(acceptance, k, cost)) for k in lengths), key=lambda found: found.speedup)


def _speedup(acceptance: Sequence[float], k: int, cost: float) -> float:
    """As `policies.plan.speedups`, where each row more has one cost."""
    expected = reached = 1.0
    for j in range(k):
        reached *= acceptance[min(j, len(acceptance) - 1)]
        expected += reached
    return expected / (1.0 + k * (cost + _ROW_COST))


def _seconds(runner: Runner, table: BlockTable, forward: Forward) -> float:
    begun = time.perf_counter()
    runner.run(forward, runner.pack([Span(table, 0, [0], 1)])).argmax().item()
    return time.perf_counter() - begun
