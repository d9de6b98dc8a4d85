"""Requests whose acceptance is their own, made for many runs at once.

own      each request's acceptance: beta-distributed around its class's mean
wanders  within a request: anew every `SEGMENT` rounds around its own, so that neighbouring tokens resemble each other
rounds   log-normal; short answers and long ones
k        levels that are drafted: positions behind it are not examined, and with 0 nothing is
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.drift.base import POSITIONS

SEGMENT: Final = 10
_SPREAD_OF_ROUNDS: Final = 0.6

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Traffic:
    """How requests differ, and how their tokens hang together."""

    spread: float = 0.06
    """Standard deviation of acceptance between requests of a class."""
    wander: float = 0.1
    """The same between the segments of a request."""
    rounds: float = 60.0
    """Median of a request's rounds: about 150 to 200 tokens."""
    fall: float = 0.95
    """By how much acceptance falls from position to position."""
    by_chance: bool = False
    """Whether the chances that tokens had are known, as for drafts drawn from a law."""

    def draw(
        self, rng: np.random.Generator, mean: Floats, k: Ints, first: Floats | None = None
    ) -> tuple[Floats, Ints]:
        """(rates, examined), each [n, POSITIONS], of a request each with these means and levels. first: [n], by how
        much the chances of position 1 are others, and of no other position.
        """
        own = _beta(rng, mean, self.spread)
        rounds = np.ceil(self.rounds * np.exp(rng.normal(0, _SPREAD_OF_ROUNDS, len(mean)))).astype(np.int64)
        chances = self._segments(rng, own, rounds)
        lengths = np.minimum(SEGMENT, np.maximum(rounds[:, None] - SEGMENT * np.arange(chances.shape[1]), 0))
        rates = np.zeros((len(mean), POSITIONS))
        examined = np.zeros((len(mean), POSITIONS), dtype=np.int64)
        for position in range(POSITIONS):
            examined[:, position] = np.where(k > position, lengths.sum(axis=1), 0)
            now = chances if position or first is None else (chances + first[:, None]).clip(0.01, 0.99)
            kept = rng.binomial(lengths, now)
            hoped = lengths * now if self.by_chance else kept
            rates[:, position] = hoped.sum(axis=1) / np.maximum(lengths.sum(axis=1), 1)
            lengths, chances = kept, chances * self.fall
        return rates, examined

    def _segments(self, rng: np.random.Generator, own: Floats, rounds: Ints) -> Floats:
        """[n, segments]: the chance of a token in each."""
        segments = -(-int(rounds.max()) // SEGMENT)
        wandering = rng.normal(0, self.wander, (len(own), segments))
        found: Floats = (own[:, None] + wandering).clip(0.01, 0.99)
        return found


def _beta(rng: np.random.Generator, mean: Floats, spread: float) -> Floats:
    strength = mean * (1 - mean) / spread**2 - 1
    return rng.beta(mean * strength, (1 - mean) * strength)
