"""Two replays of the same prompts compared: does the draft still say what the target says?

replay      how often each prompt's drafted tokens were examined and accepted, by one proposer
change      of examined acceptance, all positions together, from the replay before to the one after
The unit is the prompt: tokens of a text depend on one another, prompts do not. The acceptance of a replay is a ratio of
two sums over prompts, so the spread of the change follows from each prompt's share in both ratios (the delta method),
which takes into account that both replays read the same prompts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAST_PROMPTS: Final = 8
"""With fewer the spread is not known well enough to say anything."""
LEAST_EXAMINED: Final = 200
"""Drafted tokens that each replay must have had examined."""


class CanaryVerdict(StrEnum):
    """What a comparison says."""

    FINE = "fine"
    BAD = "bad"
    NO_EVIDENCE = "no_evidence"


class Counts(NamedTuple):
    """Of one prompt, by draft position: rounds in which it was examined, and in which it was accepted."""

    examined: tuple[int, ...]
    accepted: tuple[int, ...]


Replay = Sequence[Counts]
"""A prompt each, always in the same order."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of acceptance. Rates are NaN where nothing was examined."""

    verdict: CanaryVerdict
    before: float
    after: float
    low: float
    """The change is at least this, and at most `high`, with the confidence that was asked for."""
    high: float
    examined: int
    """Drafted tokens behind the smaller of both replays."""
    prompts: int
    p_value: float
    """How likely acceptance seems to fall this much where it has not."""

    @property
    def change(self) -> float:
        """From before to after."""
        return self.after - self.before

    def summary(self, whose: str) -> str:
        """What became of acceptance, for people. whose: as "of eagle"."""
        if self.verdict is CanaryVerdict.NO_EVIDENCE:
            return f"canary: nothing can be said of acceptance {whose}: {self._evidence} were examined"
        if self.verdict is CanaryVerdict.BAD:
            what = "fell"
        else:
            what = "did not fall" if self.change >= 0 else "fell by no more than tolerance or chance"
        return f"canary: acceptance {whose} {what}: {self.before:.3f} to {self.after:.3f}"

    def description(self, whose: str) -> str:
        """The same, with what it rests on."""
        if self.verdict is CanaryVerdict.NO_EVIDENCE:
            return self.summary(whose)
        return (
            f"{self.summary(whose)}, a change of {self.change:+.3f} ({self.low:+.3f} to {self.high:+.3f}, "
            f"p = {self.p_value:.2g}), over {self._evidence}"
        )

    @property
    def _evidence(self) -> str:
        return f"{self.examined} drafted tokens of {self.prompts} prompts"


def compare(before: Replay, after: Replay, *, confidence: float, tolerance: float) -> Comparison:
    """Bad: acceptance fell by more than `tolerance`, and that it fell at all has at least this confidence.

    Both must be replays of the same prompts.
    """
    old, new = _sums(before), _sums(after)
    both = (old[:, 0] > 0) & (new[:, 0] > 0)
    old, new = old[both], new[both]
    prompts, examined = len(old), int(min(old[:, 0].sum(), new[:, 0].sum())) if both.any() else 0
    was, now = _rate(old), _rate(new)
    if prompts < LEAST_PROMPTS or examined < LEAST_EXAMINED:
        nothing = CanaryVerdict.NO_EVIDENCE
        return Comparison(nothing, was, now, math.nan, math.nan, examined, prompts, math.nan)
    error = _spread(_shares(new, now) - _shares(old, was))
    change = now - was
    width = _quantile((1 + confidence) / 2) * error
    p_value = _below(change / error) if error else float(change >= 0)
    bad = change < -tolerance and p_value <= 1 - confidence
    verdict = CanaryVerdict.BAD if bad else CanaryVerdict.FINE
    return Comparison(verdict, was, now, change - width, change + width, examined, prompts, p_value)


def by_position(replay: Replay) -> tuple[float, ...]:
    """Examined acceptance at each draft position; NaN where nothing was examined."""
    depth = max((len(counts.examined) for counts in replay), default=0)
    examined, accepted = ([sum(_at(c[i], j) for c in replay) for j in range(depth)] for i in (0, 1))
    return tuple(a / n if n else math.nan for n, a in zip(examined, accepted, strict=True))


def _at(counts: Sequence[int], position: int) -> int:
    return counts[position] if position < len(counts) else 0


def _sums(replay: Replay) -> NDArray[np.float64]:
    """[P, 2]: examined and accepted of each prompt, all positions together."""
    return np.array([(sum(c.examined), sum(c.accepted)) for c in replay], dtype=np.float64).reshape(-1, 2)


def _rate(sums: NDArray[np.float64]) -> float:
    examined, accepted = sums.sum(axis=0)
    return float(accepted / examined) if examined else math.nan


def _shares(sums: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """[P]: what each prompt moves the rate by, to first order, as if it stood for all of them."""
    shares: NDArray[np.float64] = (sums[:, 1] - rate * sums[:, 0]) / sums[:, 0].mean()
    return shares


def _spread(shares: NDArray[np.float64]) -> float:
    """The standard error of their mean."""
    return float(shares.std(ddof=1) / math.sqrt(len(shares)))


def _below(z: float) -> float:
    """Of a standard normal: how likely it is at most this. A hair generous for few prompts, for which `LEAST_PROMPTS`
    and a tolerance stand.
    """
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _quantile(probability: float) -> float:
    """The inverse of `_below`, by halving."""
    low, high = -10.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _below(middle) < probability else (low, middle)
    return high
