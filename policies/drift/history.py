"""What a stratum's requests showed, in blocks that are the larger the longer ago they are.

level      its blocks hold 2^level requests each. When it has more than `KEPT`, its two oldest become one of the next
           level: an exponential histogram, as in A. Bifet, R. Gavalda, "Learning from time-changing data with adaptive
           windowing" (2007). So the last requests stand alone, and a year takes no more room than a day.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.drift.base import POSITIONS
from policies.drift.table import Table

KEPT: Final = 8
LEVELS: Final = 20  # eight million requests; what is older joins the oldest block

_FIELDS: Final = 2 * POSITIONS + 2

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Past(NamedTuple):
    """One position's blocks, oldest first; those without evidence are left out."""

    mean: Floats
    weight: Floats
    """1 / variance of the mean, as far as the spread of rates is known."""
    requests: Floats
    start: Floats
    """When a block's first request ended, Unix seconds."""


class History(Table):
    """The blocks of all rows."""

    COLUMNS = ("blocks", "filled")

    def __init__(self, rows: int) -> None:
        self.blocks = np.zeros((rows, LEVELS, KEPT + 1, _FIELDS))
        """Sums of weight and of weight times rate by position, requests, start. Oldest first within a level."""
        self.filled = np.zeros((rows, LEVELS), dtype=np.int64)

    def add(self, rows: Ints, rates: Floats, weights: Floats, t: Floats) -> None:
        """Take in a request of each row (each once); a position that was not examined has weight 0."""
        new = np.concatenate([weights, weights * rates, np.ones((len(rows), 1)), t[:, None]], axis=1)
        for level in range(LEVELS):
            self.blocks[rows, level, self.filled[rows, level]] = new
            self.filled[rows, level] += 1
            full = self.filled[rows, level] > KEPT
            if not full.any():
                return
            rows = rows[full]
            new = self._merge_oldest(rows, level)

    def _merge_oldest(self, rows: Ints, level: int) -> Floats:
        """Take the two oldest blocks off a full level, and make one of them; at the last level it stays there."""
        blocks = self.blocks[rows, level]
        merged: Floats = blocks[:, 0] + blocks[:, 1]
        merged[:, -1] = blocks[:, 0, -1]
        if level == LEVELS - 1:
            self.blocks[rows, level, 0] = merged
            self.blocks[rows, level, 1:-1] = blocks[:, 2:]
            self.filled[rows, level] -= 1
            return merged
        self.blocks[rows, level, :-2] = blocks[:, 2:]
        self.filled[rows, level] -= 2
        return merged

    def past(self, row: int, position: int) -> Past:
        """All that is known of a row."""
        levels = [self.blocks[row, level, : self.filled[row, level]] for level in reversed(range(LEVELS))]
        blocks = np.concatenate(levels)
        blocks = blocks[blocks[:, position] > 0]
        weight = blocks[:, position]
        return Past(blocks[:, POSITIONS + position] / weight, weight, blocks[:, -2], blocks[:, -1])

    def clear(self, rows: Ints) -> None:
        """Begin anew."""
        self.filled[rows] = 0
