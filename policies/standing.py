"""What each running request was given so far, one row each: so that it is not taken to and fro.

switch   from one arm to another, or to none at all (OFF) or from it, by choice: what was left was still offered
dwell    rounds after a switch within which it is not taken back, as long as what it led to is offered
"""

from typing import Final

import numpy as np

from policies.columns import NO_ARM
from policies.lengths import Bools, Ints

OFF: Final = -2
"""In the place of an arm: no draft, though there were options."""

DWELL: Final = 8
"""Rounds."""

FAVOUR: Final = 1.02
"""What a request has not had last must bring so many times as much to be taken."""

_FIRST_ROWS: Final = 64
_SPREAD: Final = 32  # rounds


class Standing:
    """Rows of all requests that were not forgotten."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._last: tuple[str, ...] = ()
        self._last_rows: Ints = np.zeros(0, dtype=np.intp)
        self._arrivals = 0
        self._moved = -DWELL  # step of the last switch of all
        nothing = np.zeros(0, dtype=np.intp)
        self.arm, self.before, self.since, self.idle = nothing, nothing, nothing, nothing
        """[rows] the arm now, the one before it, the step of the change; rounds since the last draft."""

    def rows(self, requests: tuple[str, ...]) -> Ints:
        """One for each."""
        if requests != self._last:
            found = [self._rows[name] if name in self._rows else self._new(name) for name in requests]
            self._last, self._last_rows = requests, np.array(found, dtype=np.intp)
        return self._last_rows

    def forget(self, request: str) -> None:
        """The request has ended."""
        row = self._rows.pop(request, None)
        if row is not None:
            self._free.append(row)
            self._last = ()

    def held(self, rows: Ints, arms: Ints, step: int) -> tuple[Bools, Bools]:
        """([b] must draft, [O, b] must not be taken): what would take a switch back too soon."""
        if step - self._moved >= DWELL:
            return np.zeros(len(rows), dtype=np.bool_), np.zeros(arms.shape, dtype=np.bool_)
        now, before = self.arm[rows], self.before[rows]
        recent = (step - self.since[rows] < DWELL) & ((now == OFF) | (arms == now).any(axis=0))
        return recent & (before == OFF), recent & (arms == before)

    def give(self, rows: Ints, arms: Ints, chosen: Ints, step: int) -> None:
        """What was chosen [b] of arms [O, b]; NO_ARM for those who had no choice."""
        moved = np.flatnonzero((chosen != self.arm[rows]) & (chosen != NO_ARM))
        if not len(moved):
            return
        self._moved = step
        rows = rows[moved]
        now = self.arm[rows]
        by_choice = (now == OFF) | (arms[:, moved] == now).any(axis=0)
        self.before[rows] = np.where(by_choice, now, NO_ARM)
        self.arm[rows] = chosen[moved]
        self.since[rows] = step

    def _new(self, name: str) -> int:
        if not self._free:
            self._grow()
        row = self._rows[name] = self._free.pop()
        self.arm[row] = self.before[row] = NO_ARM
        # Arrivals start at different counts, so that short requests have their share of probes too.
        self.idle[row] = self._arrivals % _SPREAD
        self._arrivals += 1
        return row

    def _grow(self) -> None:
        known = len(self.arm)
        added = np.zeros(max(known, _FIRST_ROWS), dtype=np.intp)
        self.arm, self.before, self.since, self.idle = (
            np.concatenate([each, added]) for each in (self.arm, self.before, self.since, self.idle)
        )
        self._free += range(len(self.arm) - 1, known - 1, -1)
