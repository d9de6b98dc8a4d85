"""How far predictions were off, lately; by ranges of rows, since a curve may be right here and wrong there."""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Final

import numpy as np

_STEPS: Final = 256  # the last so many of each range
_BOUNDS: Final = (1, 4, 16, 64)  # the most rows of each range but the last
ALL_ROWS: Final = "all"
RANGES: Final = (
    "1",
    *(f"{low + 1}-{high}" for low, high in pairwise(_BOUNDS)),
    f"{_BOUNDS[-1] + 1}+",
)
"""Names of the ranges, ascending."""


@dataclass(frozen=True, slots=True)
class CostError:
    """Relative errors of the last predictions of steps of such a size: |ln(seen / predicted)|."""

    rows: str  # ALL_ROWS, or one of RANGES
    median: float
    p90: float
    steps: int  # that it is of


class CostErrors:
    """The last errors of each range."""

    def __init__(self) -> None:
        self._all: deque[float] = deque(maxlen=_STEPS)
        self._of: tuple[deque[float], ...] = tuple(deque(maxlen=_STEPS) for _ in RANGES)

    def add(self, rows: int, seconds: float, predicted: float) -> None:
        """A step of so many rows was predicted, and then seen. Both must be above 0."""
        off = abs(log(seconds) - log(predicted))
        self._all.append(off)
        self._of[bisect_left(_BOUNDS, rows)].append(off)

    def read(self) -> tuple[CostError, ...]:
        """Of all, then of each range that was seen."""
        named = zip((ALL_ROWS, *RANGES), (self._all, *self._of), strict=True)
        return tuple(_error(rows, errors) for rows, errors in named if errors)


def _error(rows: str, errors: deque[float]) -> CostError:
    median, p90 = np.quantile(errors, (0.5, 0.9))
    return CostError(rows, float(median), float(p90), len(errors))
