"""The canary in `benchmarks.drift`: replays of the same prompts, before and after an update, and what is said of them.

own     each prompt's acceptance, normal around the mean
alike   the share of rounds whose outcome both replays have in common, but for what a drop takes: contexts are the same,
        so that most of what a draft guesses right before an update it guesses right after it
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from policies.canary import CanaryVerdict, Counts, Replay, compare

PROMPTS: Final = 48
ROUNDS: Final = 20
K: Final = 2
DRAFTED: Final = PROMPTS * ROUNDS * K
CONFIDENCE: Final = 0.99
TOLERANCE: Final = 0.02

_SPREAD: Final = 0.12
_SEED: Final = 5


@dataclass(frozen=True, slots=True)
class CanaryCase:
    """An update, and how often it must be called a fall."""

    name: str
    drop: float
    alike: float
    least: float = 0.0
    most: float = 1.0

    @property
    def bound(self) -> str:
        """In words."""
        if self.least:
            return f"at least {self.least:.0%}"
        return "" if self.most == 1.0 else f"at most {self.most:.0%}"


CANARY: Final = (
    CanaryCase("a drop of 0.05, three rounds in five alike", 0.05, 0.6, least=0.95),
    CanaryCase("a drop of 0.05, four in five alike", 0.05, 0.8),
    CanaryCase("a drop of 0.05, none alike", 0.05, 0.0),
    CanaryCase("a drop of 0.10, none alike", 0.10, 0.0),
    CanaryCase("no drop, half of the rounds alike", 0.0, 0.5, most=0.02),
    CanaryCase("no drop, none alike", 0.0, 0.0, most=0.02),
    CanaryCase("the same weights under another name: all alike", 0.0, 1.0, most=0.0),
)


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of so many updates of a case."""

    case: CanaryCase
    runs: int
    fallen: int

    @property
    def met(self) -> bool:
        """Whether the bound is kept."""
        return self.case.least <= self.fallen / self.runs <= self.case.most

    @property
    def cells(self) -> tuple[str, ...]:
        """For a table."""
        met = "" if not self.case.bound else "met" if self.met else "NOT MET"
        return (self.case.name, f"{DRAFTED}", f"{self.runs}", f"{self.fallen}", self.case.bound, met)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "case": self.case.name,
            "drafted_tokens": DRAFTED,
            "runs": self.runs,
            "called_a_fall": self.fallen,
            "bound": self.case.bound,
            "met": self.met if self.case.bound else None,
        }


def judged(case: CanaryCase, runs: int) -> Judged:
    """So many updates with the default settings."""
    found = verdicts(case.drop, case.alike, runs)
    return Judged(case, runs, found.count(CanaryVerdict.BAD))


def verdicts(drop: float, alike: float, runs: int) -> list[CanaryVerdict]:
    """Of as many comparisons, around an acceptance of 0.6."""
    rng = np.random.default_rng(_SEED)
    return [
        compare(*replays(rng, 0.6, drop, alike), confidence=CONFIDENCE, tolerance=TOLERANCE).verdict
        for _ in range(runs)
    ]


def replays(rng: np.random.Generator, rate: float, drop: float, alike: float) -> tuple[Replay, Replay]:
    """Both of the same prompts."""
    found: tuple[list[Counts], list[Counts]] = ([], [])
    for _ in range(PROMPTS):
        own = float(np.clip(rng.normal(rate, _SPREAD), 0.05, 0.95))
        first, second = rng.random((2, ROUNDS, K))
        shared = rng.random((ROUNDS, 1)) < alike
        found[0].append(_counted(first < own))
        found[1].append(_counted(np.where(shared, first, second) < own - drop))
    return found


def _counted(kept: NDArray[np.bool_]) -> Counts:
    """kept: [rounds, k], whether each token would be accepted if it were examined."""
    reached = np.cumprod(np.hstack([np.ones((len(kept), 1), bool), kept[:, :-1]]), axis=1).astype(bool)
    return Counts(tuple(map(int, reached.sum(0))), tuple(map(int, (reached & kept).sum(0))))
