"""What rounds have shown, by position of a draft, for many texts and classes at once: the numbers behind
`policies.acceptance`.

row        evidence and estimate of one source: row 0 is the prior, below it hang the classes, below these the texts
parent     the row from whose estimate one with little evidence hardly departs
position   0, 1, 2 are a draft's first levels, the last one pools all levels after these
shown      [3, POSITIONS, rows]: tokens accepted, tokens examined, tokens by which older evidence fades

A position's estimate adds some imagined tokens to its evidence, at the rate where its parent has it, moved by as much
as the position before lies off its own parent's. So a class's position starts where the one before it stands, and a
text that its class's first position does not fit is not believed to fit at the second.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

POSITIONS: Final = 4
"""Columns of evidence. Levels from the fourth on share one: few rounds come so far, and those that do go on alike."""

LOWEST: Final = 0.01
HIGHEST: Final = 0.99
"""Estimates stay between these: finite evidence never shows that all or nothing will be accepted."""

PRIOR: Final = 0
"""The row of the prior."""

_MOST_LEVELS: Final = 63
_FIRST: Final = np.ones(1, dtype=np.bool_)
_FIRST_ROWS: Final = 64
_CONTRADICTION: Final = 3.5  # standard deviations between a row's recent evidence and all of it
_KEPT: Final = 3.0  # examined tokens of the recent evidence that are left then: it is partly of before
_RECENT_ENOUGH: Final = 5.0  # examined tokens below which recent evidence contradicts nothing

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def _rounds() -> Floats:
    """[3, POSITIONS, examined levels, rejections]: what each round that can happen shows."""
    counts = np.zeros((_MOST_LEVELS + 2, POSITIONS))  # by levels; the last row is that of -1
    for levels in range(1, _MOST_LEVELS + 1):
        counts[levels, : min(levels, POSITIONS)] = 1.0
        counts[levels, -1] = max(levels - POSITIONS + 1, 0)
    examined = np.arange(_MOST_LEVELS + 1)
    fades = np.maximum(counts[examined], 1.0)
    shows = [np.stack([counts[examined - no].T, counts[examined].T, fades.T]) for no in (0, 1)]
    return np.stack(shows, axis=3)


_ROUNDS: Final = _rounds().reshape(3, POSITIONS, -1)


def shown(accepted: Ints, examined: Ints) -> Floats:
    """[3, POSITIONS, n] of n rounds. A position fades by a token where nothing was examined of it: else a few unlucky
    rounds would keep drafts short of it for good, where there is nothing to learn of it.
    """
    return _ROUNDS.take(2 * examined + (examined - accepted), axis=2)


def expected(chances: Sequence[Sequence[float]]) -> Floats:
    """[POSITIONS, n] of n rounds: how many tokens were to be accepted, by the chance of each examined level."""
    lengths = np.fromiter(map(len, chances), np.int64, len(chances))
    ends = lengths.cumsum()
    level = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    cell = np.repeat(np.arange(len(chances)), lengths) + np.minimum(level, POSITIONS - 1) * len(chances)
    values = np.fromiter(chain.from_iterable(chances), np.float64, len(level))
    found: Floats = np.bincount(cell, values, len(chances) * POSITIONS).astype(np.float64, copy=False)
    return found.reshape(POSITIONS, -1)


def summed(rows: Ints, values: Floats) -> tuple[Ints, Floats]:
    """(each row once, the sum of its values [.., m]) of values [.., n]."""
    order = rows.argsort(kind="stable")
    ordered = rows[order]
    starts = np.flatnonzero(np.concatenate([_FIRST, ordered[1:] != ordered[:-1]]))
    if len(starts) == len(rows):
        return rows, values
    return ordered[starts], np.add.reduceat(values.take(order, axis=2), starts, axis=2)


class Evidence:
    """All rows. What comes in together decays what came before it and then enters whole: were the decay to run within
    a round, its last token, which is the rejected one, would weigh most, and the rate be biased downwards.
    """

    def __init__(self) -> None:
        self._all = np.zeros((2, POSITIONS, _FIRST_ROWS))  # accepted and examined
        self._recent = np.zeros((2, POSITIONS, _FIRST_ROWS))  # of rows that doubt
        self._parent = np.zeros(_FIRST_ROWS, dtype=np.int64)
        self._free: list[int] = []
        self._top = PRIOR + 1  # rows ever taken
        self.table = np.zeros((_FIRST_ROWS, POSITIONS))
        """[rows, POSITIONS]: the estimates."""

    def take(self, parent: int) -> int:
        """A row without evidence. Its estimate is the parent's from the next `estimate` on."""
        row = self._free.pop() if self._free else self._next()
        self._parent[row] = parent
        return row

    def give_back(self, row: int) -> None:
        """Its source is gone; the row may become another's."""
        self._all[..., row] = self._recent[..., row] = 0.0
        self._parent[row] = PRIOR
        self._free.append(row)

    def parent(self, row: int) -> int:
        """Of one row; that of the prior is itself."""
        return int(self._parent[row])

    def parents(self, rows: Ints) -> Ints:
        """Of each row."""
        return self._parent[rows]

    def below(self, parents: Ints) -> Ints:
        """The rows that hang below any of these."""
        asked = np.zeros(self._top, dtype=np.bool_)
        asked[parents] = True
        asked[PRIOR] = False
        return np.flatnonzero(asked[self._parent[: self._top]])

    def add(self, rows: Ints, values: Floats, half_life: float) -> None:
        """Enter what rounds have shown. rows: each once; values: [3, POSITIONS, n]."""
        self._all[..., rows] = _entered(self._all.take(rows, axis=2), values, half_life)

    def add_or_doubt(self, rows: Ints, values: Floats, half_life: float, recent: float) -> None:
        """The same for rows that remember for long, until what is recent contradicts it: an arm that has become better
        or worse is another arm.
        """
        everything = _entered(self._all.take(rows, axis=2), values, half_life)
        lately = _entered(self._recent.take(rows, axis=2), values, recent)
        doubted = _contradicts(*lately[:, 0], *everything[:, 0])
        if doubted.any():
            lately[..., doubted] = everything[..., doubted] = _faded(lately[..., doubted])
        self._all[..., rows], self._recent[..., rows] = everything, lately

    def assume(self, prior: float) -> None:
        """Set the prior. Every other row is to be estimated anew."""
        self.table[PRIOR] = min(max(prior, LOWEST), HIGHEST)

    def estimate(self, rows: Ints, weight: float) -> None:
        """Make the estimates of these rows anew, with so many imagined tokens. Their parents' must be right."""
        centre = self.table[self._parent[rows]].T.copy()
        accepted, examined = self._all.take(rows, axis=2)
        examined += weight
        accepted /= examined
        imagined = weight / examined
        steps = centre[1:] - centre[:-1]
        accepted[0] += imagined[0] * centre[0]
        for position in range(1, POSITIONS):
            moved = accepted[position - 1] + steps[position - 1]
            np.maximum(moved, LOWEST, out=moved)
            np.minimum(moved, HIGHEST, out=moved)
            moved *= imagined[position]
            accepted[position] += moved
        self.table[rows] = np.minimum(np.maximum(accepted, LOWEST), HIGHEST).T

    def totals(self, row: int) -> tuple[float, float]:
        """(accepted, examined) over all positions."""
        accepted, examined = self._all[..., row].sum(axis=1).tolist()
        return accepted, examined

    def _next(self) -> int:
        if self._top == len(self.table):
            self._all, self._recent = _doubled(self._all), _doubled(self._recent)
            self.table = np.concatenate([self.table, np.zeros_like(self.table)])
            self._parent = np.concatenate([self._parent, np.zeros_like(self._parent)])
        self._top += 1
        return self._top - 1


def rows_of(rows: Iterable[int]) -> Ints:
    """As an array."""
    return np.fromiter(rows, np.int64)


def _doubled(array: Floats) -> Floats:
    return np.concatenate([array, np.zeros_like(array)], axis=2)


def _entered(before: Floats, values: Floats, half_life: float) -> Floats:
    """before: [2, POSITIONS, n]; it becomes part of the result."""
    before *= np.exp2(values[2] * (-1 / half_life))
    before += values[:2]
    return before


def _faded(recent: Floats) -> Floats:
    """The same rates, with no more than a few tokens behind each. recent: [2, POSITIONS, n]."""
    scale: Floats = _KEPT / np.maximum(recent[1], _KEPT)
    return recent * scale


def _contradicts(accepted: Floats, examined: Floats, all_accepted: Floats, all_examined: Floats) -> Bools:
    """Whether the recent evidence of a position does not go with all of it: [n] each."""
    rate = (all_accepted + 1) / (all_examined + 2)
    noise = np.sqrt(rate * (1 - rate) * examined)
    far: Bools = np.abs(accepted - rate * examined) > _CONTRADICTION * noise
    far &= examined >= _RECENT_ENOUGH
    return far
