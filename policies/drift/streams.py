"""All detectors of all strata, a row each; many rows at once, so that simulations run through the same lines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.drift.bets import LONGEST, Bets, Rises
from policies.drift.history import History, Past
from policies.drift.ranks import Ranks, sizes
from policies.drift.settings import DriftSettings
from policies.drift.shape import Shape, recent, shape
from policies.drift.table import Table

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_STAKE: Final = 0.9  # of what there is; less than all, so that no request ends a bet
_HEALED: Final = float(np.log(1e4))  # how much likelier the baseline must have become than half the fall
_CLEAR_OF: Final = 1.5  # a collapse is over above so many times its limit


@dataclass(frozen=True, slots=True)
class Fall:
    """A fall that an alarm was raised for."""

    position: int
    """The first is 0."""
    shape: Shape


class Flags(Table):
    """What each row's other detectors have come to."""

    COLUMNS = ("fell", "healing", "collapsing", "collapsed", "looping", "seen_at")

    def __init__(self, rows: int) -> None:
        self.fell = np.zeros(rows, dtype=np.bool_)
        self.healing = np.zeros(rows)
        """Of those that fell: log-likelihood ratio of the baseline against the fall."""
        self.collapsing = np.zeros(rows)
        """Of the bets against "the mean rate is not below the limit": their sum."""
        self.collapsed = np.zeros(rows, dtype=np.bool_)
        self.looping = np.zeros(rows, dtype=np.bool_)
        self.seen_at = np.full(rows, -np.inf)
        """Unix seconds of the last evidence of the first position."""


class Streams:
    """Rows come into being by `grow` and know nothing of what they stand for."""

    def __init__(self, settings: DriftSettings, rows: int, seed: int = 0) -> None:
        self.settings = settings
        self._coins = np.random.default_rng(seed)
        self.ranks = Ranks(rows)
        self.falls = Bets(rows)
        self.rises = Rises(rows)
        self.history = History(rows)
        self.flags = Flags(rows)
        self.found: dict[int, Fall] = {}
        """By row: the fall of those that fell."""

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.flags.rows

    def grow(self) -> None:
        """Twice as many rows."""
        for table in self._tables().values():
            table.grow()

    def saved(self, row: int) -> dict[str, dict[str, bytes]]:
        """All that a row knows, but for `found`."""
        return {name: table.saved(row) for name, table in self._tables().items()}

    def restore(self, row: int, saved: Mapping[str, Mapping[str, bytes]]) -> None:
        """Take over what `saved` gave. Raises `ValueError` or `KeyError` where it is of another shape."""
        for name, table in self._tables().items():
            table.restore(row, saved[name])

    def _tables(self) -> dict[str, Table]:
        names = ("ranks", "falls", "rises", "history", "flags")
        return {name: getattr(self, name) for name in names}

    def observe(self, rows: Ints, rates: Floats, examined: Ints, t: Floats) -> None:
        """Take in a request of each row (each once). rates, examined: [n, POSITIONS]; a rate counts where examined."""
        seen, size = examined > 0, sizes(examined)
        z, spread = self.ranks.compare(rows, rates, size, self._coins.random(rates.shape))
        self.falls.add(rows, z, spread, seen)
        self.rises.add(rows, z, spread, seen)
        self.history.add(rows, rates, np.where(seen, spread**-2.0, 0.0), t)
        self.flags.seen_at[rows] = np.where(seen[:, 0], t, self.flags.seen_at[rows])
        self._heal(rows, z, spread, seen)
        learns = ~self.flags.fell[rows]
        self.ranks.add(rows[learns], rates[learns], size[learns], seen[learns])
        self._judge_falls(rows)
        self._judge_rises(rows)
        self._judge_levels(rows[seen[:, 0]], rates[seen[:, 0], 0])

    def learned(self, rows: Ints) -> Bools:
        """[n]: whether a baseline is there to compare with."""
        found: Bools = self.ranks.total(rows)[:, 0] >= self.settings.learn_requests
        return found

    def score(self, rows: Ints) -> Floats:
        """[n]: 0 for no evidence of a fall, 1 for enough."""
        evidence = np.log(np.maximum(self.falls.evidence(rows), 1.0))
        found: Floats = evidence / np.log(self.settings.requests_per_false_alarm)
        return found

    def past(self, row: int, position: int = 0) -> Past:
        """What a row has shown."""
        return self.history.past(row, position)

    def risen(self, row: int) -> Fall | None:
        """What a rise of the first position looks like, told as a fall, but with a drop below 0. None where there is
        none.
        """
        found = self._rise(row, 0)
        return None if found is None else Fall(0, found._replace(before=-found.before, after=-found.after))

    def restart(self, rows: Ints, *, forget: bool) -> None:
        """Look for a fall from now on. What came during one is forgotten; with `forget` the baseline is, too."""
        self.history.clear(rows if forget else rows[self.flags.fell[rows]])
        for bets in (self.falls, self.rises):
            bets.clear(rows)
        self.flags.fell[rows] = self.flags.collapsed[rows] = self.flags.looping[rows] = False
        self.flags.healing[rows] = self.flags.collapsing[rows] = 0.0
        for row in rows:
            self.found.pop(int(row), None)
        if forget:
            self.ranks.clear(rows)

    def _judge_falls(self, rows: Ints) -> None:
        enough = self.falls.evidence(rows) >= self.settings.requests_per_false_alarm
        for row in rows[enough & ~self.flags.fell[rows] & self.learned(rows)]:
            position = self.falls.position(int(row))
            fall = shape(self.past(int(row), position))
            if fall is not None and fall.drop >= self.settings.min_drop:
                self.found[int(row)] = Fall(position, fall)
                self.flags.fell[row], self.flags.healing[row] = True, 0.0

    def _heal(self, rows: Ints, z: Floats, spread: Floats, seen: Bools) -> None:
        """Whether a fall is over: a sum of log-likelihood ratios of the baseline against the fall, never under 0."""
        for place in np.flatnonzero(self.flags.fell[rows]):
            row = int(rows[place])
            fall = self.found[row]
            if seen[place, fall.position]:
                # half: the first estimate of a fall is often too large, and what is left of it would seem to be none
                d = min(fall.shape.drop / 2 / spread[place, fall.position], LONGEST)
                gain = d * z[place, fall.position] + d**2 / 2
                self.flags.healing[row] = max(0.0, self.flags.healing[row] + gain)
            if self.flags.healing[row] >= _HEALED:
                self.restart(rows[place : place + 1], forget=False)

    def _judge_rises(self, rows: Ints) -> None:
        """A rise is a loop, or good news: when it has lasted, what comes is compared with the better baseline."""
        enough = self.rises.evidence(rows) >= self.settings.requests_per_false_alarm
        for row in rows[enough & self.learned(rows) & ~self.flags.looping[rows]]:
            rise = self._rise(int(row), self.rises.position(int(row)))
            if recent(self.past(int(row))) >= self.settings.loop_above:
                self.flags.looping[row] = True
            elif rise is not None and _lasts(rise, self.settings):
                self.restart(np.array([row]), forget=True)

    def _rise(self, row: int, position: int) -> Shape | None:
        """Of rates below 0, so that it is a fall."""
        past = self.past(row, position)
        return shape(past._replace(mean=-past.mean))

    def _judge_levels(self, rows: Ints, rates: Floats) -> None:
        """Bets against "the mean rate is at least `collapse_below`", with no need of a baseline: 1 + s (c - x) has at
        most mean 1 (I. Waudby-Smith, A. Ramdas, "Estimating means of bounded random variables by betting", 2024).
        """
        limit = self.settings.collapse_below
        won = 1 + _STAKE / (1 - limit) * (limit - rates)
        self.flags.collapsing[rows] = np.minimum(won * (1 + self.flags.collapsing[rows]), 1e200)
        self.flags.collapsed[rows] |= self.flags.collapsing[rows] >= self.settings.requests_per_false_alarm
        for row in rows[self.flags.collapsed[rows]]:
            if recent(self.past(int(row))) > limit * _CLEAR_OF:
                self.flags.collapsed[row], self.flags.collapsing[row] = False, 0.0
        for row in rows[self.flags.looping[rows]]:
            if recent(self.past(int(row))) < self.settings.loop_above:
                self.restart(np.array([row]), forget=False)


def _lasts(rise: Shape, settings: DriftSettings) -> bool:
    """Whether it is large enough, and has gone on for as long as a baseline takes."""
    return rise.drop >= settings.min_drop and rise.requests_after >= settings.learn_requests
