"""Tokens per second of the adaptive policy against every static k, at one mix and concurrency after another."""

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
    """One mix at one concurrency. Of nine figures with noise in them the best is partly the luckiest, and it is the one
    that the adaptive policy is compared with.
    """

    mix: str
    running: int
    shown: dict[str, Shown]
    """By policy."""

    def against(self, name: str) -> float:
        """The adaptive policy's rate over another's."""
        return self.shown[ADAPTIVE].rate / self.shown[name].rate

    @property
    def best(self) -> str:
        """The best static policy."""
        return max(STATIC, key=lambda name: self.shown[name].rate)

    @property
    def lengths(self) -> dict[int, int]:
        """Rounds of the adaptive policy by the k that it chose."""
        return self.shown[ADAPTIVE].lengths

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "mix": self.mix,
            "running": self.running,
            "rates": {name: of.rate for name, of in self.shown.items()},
            "best_static": self.best,
            "against_best": self.against(self.best),
            "against_plain": self.against(PLAIN),
            "lengths": dict(sorted(self.lengths.items())),
        }


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
        return Point(mix, running, {name: together(each[name] for each in rounds) for name in _NAMES})

    def _measured(self, names: Sequence[str], mix: str, running: int, turn: int) -> dict[str, Shown]:
        wanted = self.prompts[mix][: self.plan.requests(running)]
        return measured(
            self.bar,
            f"regret, {mix}, {running} running, round {turn}",
            len(names) * self.plan.weight(running),
            lambda: self.rivals.shown(names, wanted, running, self.plan.tokens),
        )


def measured(bar: Bar, key: str, weight: float, run: Callable[[], dict[str, Shown]]) -> dict[str, Shown]:
    """What policies gave, as the journal keeps it."""

    def documents() -> dict[str, Any]:
        return {name: shown.document() for name, shown in run().items()}

    return {name: Shown.of(document) for name, document in bar.measured(key, weight, documents).items()}
