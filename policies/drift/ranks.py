"""Where a request's rate lies among those before it, as a number that is standard normal while nothing changes.

A smoothed conformal p-value: the share of earlier rates below this one, ties broken by a coin. If the requests of a
cell come in no particular order (are exchangeable), these are independent and uniform, exactly, whatever the law of the
rates is, however the tokens within a request hang together, and although the baseline is learned on the way: Vovk,
Gammerman, Shafer, "Algorithmic Learning in a Random World", 2nd ed. 2022, theorem 11.1; categories as its section 4.6.

cell       a row (stratum), a draft position, and a size: a request of few examined tokens is compared with such alone,
           since its rate varies more. So neither longer texts nor a k that wanders looks like drift.
sparse     a cell seen fewer than `_ENOUGH` times takes in the sizes next below: a ruined draft makes the rounds of a
           text more, and its requests would else be alone in a cell of which nothing was seen
"""

from collections.abc import Callable
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from policies.drift.base import POSITIONS
from policies.drift.table import Table

SIZES: Final = 8
"""Of 1, 2 and 3, 4 to 7, … and from 128 examined tokens on."""

BINS: Final = 100
"""A rate is known to a hundredth. Coarse rates are rates as well: nothing of the law is lost by it."""

_ENOUGH: Final = 20
_FURTHEST: Final = 2  # sizes below: a text has at most a few times as many rounds without drafts
_SMALLEST: Final = 3  # from 8 tokens on: rates of fewer are of another kind, mostly 0, 1 and halves
_IMAGINED: Final = 4.0
_SPREAD_BETWEEN: Final = 0.1  # standard deviation between requests, until they have shown their own
_TINY: Final = 1e-15

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_normal: Final[Callable[[Floats], NDArray[Any]]] = np.frompyfunc(NormalDist().inv_cdf, 1, 1)


def sizes(examined: Ints) -> Ints:
    """The size of each count; that of 0 is 0, too."""
    found: Ints = np.frexp(examined)[1].astype(np.int64) - 1
    return found.clip(0, SIZES - 1)


class Ranks(Table):
    """The rates of all cells so far, counted."""

    COLUMNS = ("counts", "moments")

    def __init__(self, rows: int) -> None:
        self.counts = np.zeros((rows, POSITIONS, SIZES, BINS), dtype=np.int32)
        self.moments = np.zeros((rows, POSITIONS, SIZES, 3))
        """Of each cell: how many rates, their sum, and that of their squares."""

    def compare(self, rows: Ints, rates: Floats, size: Ints, coins: Floats) -> tuple[Floats, Floats]:
        """(score, spread) of each rate, [n, POSITIONS] as all arguments but rows. score: standard normal while nothing
        changes; spread: standard deviation of the rates that it is compared with, which the rate itself does not touch.
        """
        counts, moments = self._cells(rows, size)
        bins = _bins(rates)[..., None]
        equal = np.take_along_axis(counts, bins, axis=2)[..., 0]
        below = np.take_along_axis(counts.cumsum(axis=2), bins, axis=2)[..., 0] - equal
        u = (below + coins * (equal + 1)) / (moments[..., 0] + 1)
        return _scores(u), self._spread(rows, size, moments)

    def _cells(self, rows: Ints, size: Ints) -> tuple[NDArray[np.int32], Floats]:
        """([n, POSITIONS, BINS], [n, POSITIONS, 3]): counts and moments of the cells, and of what sparse ones take."""
        cell = rows[:, None], np.arange(POSITIONS), size
        counts, moments, lowest = self.counts[cell], self.moments[cell], size.copy()
        furthest = np.maximum(size - _FURTHEST, np.minimum(size, _SMALLEST))
        while (sparse := (moments[..., 0] < _ENOUGH) & (lowest > furthest)).any():
            lowest[sparse] -= 1
            row, place = np.nonzero(sparse)
            beside = rows[row], place, lowest[sparse]
            counts[sparse] += self.counts[beside]
            moments[sparse] += self.moments[beside]
        return counts, moments

    def _spread(self, rows: Ints, size: Ints, moments: Floats) -> Floats:
        total, first, second = np.moveaxis(moments, -1, 0)
        mean = np.nan_to_num(self.mean(rows), nan=0.5)
        imagined = _SPREAD_BETWEEN**2 + mean * (1 - mean) / 2.0**size
        scatter = np.maximum(second - first**2 / np.maximum(total, 1), 0.0)
        found: Floats = np.sqrt((scatter + _IMAGINED * imagined) / (np.maximum(total - 1, 0) + _IMAGINED))
        return found

    def add(self, rows: Ints, rates: Floats, size: Ints, seen: NDArray[np.bool_]) -> None:
        """Take in rates where they were seen. rows: each once."""
        row, place = np.nonzero(seen)
        cell = rows[row], place, size[row, place]
        rate = rates[row, place]
        self.counts[(*cell, _bins(rate))] += 1
        self.moments[cell] += np.stack([np.ones_like(rate), rate, rate**2], axis=-1)

    def total(self, rows: Ints) -> Floats:
        """[n, POSITIONS]: requests behind each position's baseline."""
        found: Floats = self.moments[rows, ..., 0].sum(axis=2)
        return found

    def mean(self, rows: Ints) -> Floats:
        """[n, POSITIONS]: the baseline of each, as the mean over requests; NaN without any."""
        total, first, _ = np.moveaxis(self.moments[rows].sum(axis=2), -1, 0)
        return np.where(total > 0, first / np.maximum(total, 1), np.nan)

    def clear(self, rows: Ints) -> None:
        """Begin anew."""
        self.counts[rows] = 0
        self.moments[rows] = 0.0


def _scores(u: Floats) -> Floats:
    """Standard normal where u is uniform."""
    found: Floats = _normal(u.clip(_TINY, 1 - _TINY)).astype(np.float64)
    return found


def _bins(rates: Floats) -> Ints:
    return np.minimum((rates * BINS).astype(np.int64), BINS - 1)
