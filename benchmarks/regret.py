"""Tokens per second of the adaptive policy against every static k, at one mix and concurrency after another."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.bar import Bar
from benchmarks.rivals import ADAPTIVE, PLAIN, STATIC, Rivals
from benchmarks.steady import Ask, Shown, steps_weight, together

BATCHES: Final = {1: 6, 2: 3, 4: 3, 8: 2}
"""By concurrency: so many batches make a measurement, where one would be over too soon; others have one."""
_NEAR: Final = 0.9  # of the best: a static k that gave less in the first round is not tried again
_PROMPT: Final = 230  # tokens of a prompt, about


@dataclass(frozen=True, slots=True)
class Point:
    """One mix at one concurrency."""

    mix: str
    running: int
    rates: dict[str, list[float]]
    """Tokens per second by policy, round by round; one round alone for those that were far off in the first."""
    lengths: dict[int, int]
    """Rounds of the adaptive policy by the k that it chose."""

    @property
    def contended(self) -> list[str]:
        """The static policies that were tried in every round."""
        rounds = len(self.rates[ADAPTIVE])
        return [name for name, rates in self.rates.items() if name != ADAPTIVE and len(rates) == rounds]

    def against(self, name: str) -> float:
        """The adaptive policy's rate over another's: the median of what each round says, whose runs are neighbours."""
        pairs = zip(self.rates[ADAPTIVE], self.rates[name], strict=False)
        return statistics.median(ours / theirs for ours, theirs in pairs)

    @property
    def best(self) -> str:
        """The static policy that the adaptive one has the hardest time with."""
        return min(self.contended, key=self.against)

    def median(self, name: str) -> float:
        """Tokens per second."""
        return statistics.median(self.rates[name])

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "mix": self.mix,
            "running": self.running,
            "rates": self.rates,
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
        """At most: no static k falls behind."""
        runs = 1 + self.repeats * (1 + len(STATIC))
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
        """A round not counted in which the adaptive policy meets the traffic, then rounds in which all take turns."""
        self._measured(mix, running, ADAPTIVE, 0)
        names = [*STATIC, ADAPTIVE]
        shown: dict[str, list[Shown]] = {name: [] for name in names}
        for turn in range(1, self.plan.repeats + 1):
            at = turn % len(names)
            for name in names[at:] + names[:at]:
                shown[name].append(self._measured(mix, running, name, turn))
            if turn == 1:
                left = [name for name in names if _worth(name, shown)]
                self.bar.skip((len(names) - len(left)) * (self.plan.repeats - 1) * self.plan.weight(running))
                names = left
        rates = {name: [each.rate for each in of] for name, of in shown.items()}
        return Point(mix, running, rates, together(shown[ADAPTIVE]).lengths)

    def _measured(self, mix: str, running: int, name: str, turn: int) -> Shown:
        key = f"regret, {mix}, {running} running, {name}, round {turn}"
        run = lambda: self._run(mix, running, name)  # noqa: E731
        return Shown.of(self.bar.measured(key, self.plan.weight(running), run))

    def _run(self, mix: str, running: int, name: str) -> dict[str, Any]:
        wanted = self.prompts[mix][: self.plan.requests(running)]
        return self.rivals.shown(name, wanted, running, self.plan.tokens).document()


def _worth(name: str, shown: Mapping[str, Sequence[Shown]]) -> bool:
    """Whether it is tried again after the first round."""
    best = max(shown[static][0].rate for static in STATIC)
    return name in (ADAPTIVE, PLAIN) or shown[name][0].rate >= _NEAR * best
