"""Tokens per second of the adaptive policy against every static k, at one mix and concurrency after another."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.bar import Bar
from benchmarks.rivals import ADAPTIVE, PLAIN, STATIC, Rivals
from benchmarks.steady import Ask, Shown, steps_weight, together

BATCHES: Final = {1: 6, 2: 3, 4: 3, 8: 2}
"""By concurrency: so many batches make a measurement, where one would be over too soon; others have one."""
_NAMES: Final = (*STATIC, ADAPTIVE)
_PROMPT: Final = 230  # tokens of a prompt, about


@dataclass(frozen=True, slots=True)
class Point:
    """One mix at one concurrency, measured in turns of a few steps each.

    The best static k is named by one half of the turns and compared by the other, and the other way round: of nine
    figures with noise in them the best is partly the luckiest, and a comparison by the same figures would count that.
    """

    mix: str
    running: int
    halves: dict[str, list[Shown]]
    """By policy: what the even turns gave, and the odd ones."""

    def against(self, name: str) -> float:
        """The adaptive policy's rate over another's."""
        return self.rate(ADAPTIVE) / self.rate(name)

    @property
    def against_best(self) -> float:
        """Over the best static k; the mean of both ways."""
        shares = [self._half(ADAPTIVE, half) / self._half(self._best(1 - half), half) for half in (0, 1)]
        return math.sqrt(math.prod(shares))

    @property
    def best(self) -> str:
        """The best static policy over all turns."""
        return max(STATIC, key=self.rate)

    def rate(self, name: str) -> float:
        """Tokens per second."""
        return together(self.halves[name]).rate

    @property
    def lengths(self) -> dict[int, int]:
        """Rounds of the adaptive policy by the k that it chose."""
        return together(self.halves[ADAPTIVE]).lengths

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "mix": self.mix,
            "running": self.running,
            "rates": {name: [half.rate for half in of] for name, of in self.halves.items()},
            "best_static": self.best,
            "against_best": self.against_best,
            "against_plain": self.against(PLAIN),
            "lengths": dict(sorted(self.lengths.items())),
        }

    def _half(self, name: str, half: int) -> float:
        return self.halves[name][half].rate

    def _best(self, half: int) -> str:
        return max(STATIC, key=lambda name: self._half(name, half))


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    points: Sequence[int]
    mixes: Sequence[str]
    repeats: int
    tokens: int
    batches: Mapping[int, int]

    def requests(self, running: int) -> int:
        """Of one measurement, in batches of so many."""
        return running * self.batches.get(running, 1)

    def weight(self, running: int) -> float:
        """Of one measurement, in rows of a prompt."""
        return self.batches.get(running, 1) * (running * _PROMPT + steps_weight(self.tokens, running))

    @property
    def total(self) -> float:
        """Of everything."""
        runs = 1 + self.repeats * len(_NAMES)
        return runs * len(self.mixes) * sum(map(self.weight, self.points))


@dataclass(frozen=True, slots=True)
class Regret:
    """The measurement. prompts: by mix, at least as many as the largest measurement takes."""

    rivals: Rivals
    prompts: Mapping[str, Sequence[Ask]]
    plan: Plan
    bar: Bar

    def measure(self) -> list[Point]:
        """Every point."""
        return [self._point(mix, running) for mix in self.plan.mixes for running in self.plan.points]

    def _point(self, mix: str, running: int) -> Point:
        """The adaptive policy meets the traffic, which is not counted; then all take turns."""
        self._measured((ADAPTIVE,), mix, running, 0)
        rounds = [self._measured(_NAMES, mix, running, turn) for turn in range(1, self.plan.repeats + 1)]
        halves = {
            name: [together(half) for half in zip(*(r[name] for r in rounds), strict=True)] for name in _NAMES
        }
        return Point(mix, running, halves)

    def _measured(self, names: Sequence[str], mix: str, running: int, turn: int) -> dict[str, list[Shown]]:
        wanted = self.prompts[mix][: self.plan.requests(running)]
        return measured(
            self.bar,
            f"regret, {mix}, {running} running, round {turn}",
            len(names) * self.plan.weight(running),
            lambda: self.rivals.shown(names, wanted, running, self.plan.tokens),
        )


def measured(
    bar: Bar, key: str, weight: float, run: Callable[[], dict[str, list[Shown]]]
) -> dict[str, list[Shown]]:
    """What policies gave, by halves, as the journal keeps it."""

    def document() -> dict[str, Any]:
        return {name: [half.document() for half in of] for name, of in run().items()}

    return {name: [Shown.of(half) for half in of] for name, of in bar.measured(key, weight, document).items()}
