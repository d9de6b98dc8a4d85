"""Tokens per second of the adaptive policy against every static k, at one mix and concurrency after another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.bar import Bar
from benchmarks.rivals import ADAPTIVE, PLAIN, STATIC, Rivals
from benchmarks.steady import Ask, Shown, steps_weight, together

BATCHES: Final = {1: 12, 2: 8, 4: 3, 8: 2}
"""By concurrency: so many batches make a measurement, where one would be over too soon; others have one."""
FINALISTS: Final = 2
_SCREEN: Final = 0.5  # of the tokens
_FINAL: Final = 1.5
_PROMPT: Final = 230  # tokens of a prompt, about


@dataclass(frozen=True, slots=True)
class Point:
    """One mix at one concurrency. Every static k is screened, and the best of them meet the adaptive policy in a final
    that counts by itself: of nine figures with noise in them the best is partly the luckiest.
    """

    mix: str
    running: int
    screened: dict[str, Shown]
    """Every static policy."""
    shown: dict[str, Shown]
    """The final: the best static ones, no drafts, and the adaptive policy."""

    def against(self, name: str) -> float:
        """The adaptive policy's rate over another's."""
        return self.shown[ADAPTIVE].rate / self.shown[name].rate

    @property
    def best(self) -> str:
        """The best static policy."""
        return max(self.shown.keys() - {ADAPTIVE}, key=lambda name: self.shown[name].rate)

    @property
    def lengths(self) -> dict[int, int]:
        """Rounds of the adaptive policy by the k that it chose."""
        return self.shown[ADAPTIVE].lengths

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "mix": self.mix,
            "running": self.running,
            "screened": {name: of.rate for name, of in self.screened.items()},
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
        runs = 1 + _SCREEN * len(STATIC) + self.repeats * _FINAL * (2 + FINALISTS)
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
        whole, part = self.plan.tokens, round(_SCREEN * self.plan.tokens)
        self._measured((ADAPTIVE,), mix, running, whole, "met")
        screened = self._measured(STATIC, mix, running, part, "screened")
        best = sorted(STATIC, key=lambda name: screened[name].rate)[-FINALISTS:]
        names, tokens = tuple(dict.fromkeys((PLAIN, *best, ADAPTIVE))), round(_FINAL * whole)
        rounds = [
            self._measured(names, mix, running, tokens, f"final {turn}")
            for turn in range(1, self.plan.repeats + 1)
        ]
        return Point(
            mix, running, screened, {name: together(each[name] for each in rounds) for name in names}
        )

    def _measured(
        self, names: Sequence[str], mix: str, running: int, tokens: int, part: str
    ) -> dict[str, Shown]:
        wanted = self.prompts[mix][: self.plan.requests(running)]
        return measured(
            self.bar,
            f"regret, {mix}, {running} running, {part}",
            len(names) * self.plan.weight(running) * tokens / self.plan.tokens,
            lambda: self.rivals.shown(names, wanted, running, tokens),
        )


def measured(bar: Bar, key: str, weight: float, run: Callable[[], dict[str, Shown]]) -> dict[str, Shown]:
    """What policies gave, as the journal keeps it."""

    def documents() -> dict[str, Any]:
        return {name: shown.document() for name, shown in run().items()}

    return {name: Shown.of(document) for name, document in bar.measured(key, weight, documents).items()}
