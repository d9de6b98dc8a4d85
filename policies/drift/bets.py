"""Evidence that is valid whenever one looks: bets against "nothing has changed", begun anew at each request.

A bet on a fall by d standard deviations multiplies its stake by exp(-d z - d^2 / 2), which has mean 1 while z is
standard normal. What all bets begun so far are worth together is the Shiryaev-Roberts statistic M. After n requests its
mean is n, so that an alarm at M >= A comes at most once in A requests on average, and within n requests with a
probability of at most n / A: J. Shin, A. Ramdas, A. Rinaldo, "E-detectors: a nonparametric framework for sequential
change detection" (2024). A mean of such sums is one too, whatever hangs together between them: so several drops and
positions are watched at once, for the logarithm of their number.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.drift.base import POSITIONS
from policies.drift.table import Table

DROPS: Final = np.array([0.03, 0.06, 0.1, 0.2, 0.4])
"""Falls of acceptance that are bet on."""

LONGEST: Final = 3.0
"""Standard deviations that are bet on at most: further out, the rarest rates would decide alone."""

_WEIGHTS: Final = np.outer(
    [0.6, 0.2, 0.1, 0.1], [0.15, 0.2, 0.3, 0.2, 0.15]
)  # the first position matters most
_HIGHEST: Final = 1e200

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Bets(Table):
    """The sums of all rows: [rows, POSITIONS, drops]."""

    COLUMNS = ("sums",)
    SIGN = 1

    def __init__(self, rows: int) -> None:
        self.sums = np.zeros((rows, POSITIONS, len(DROPS)))

    def add(self, rows: Ints, z: Floats, spread: Floats, seen: NDArray[np.bool_]) -> None:
        """Settle the bets on a request's scores. z, spread, seen: [n, POSITIONS]; spread may depend on earlier requests
        and on this one's size, not on its rate.
        """
        drops = np.minimum(DROPS / spread[..., None], LONGEST)
        won = np.exp(-self.SIGN * drops * z[..., None] - drops**2 / 2)
        before = self.sums[rows]
        self.sums[rows] = np.where(seen[..., None], np.minimum(won * (1 + before), _HIGHEST), before)

    def evidence(self, rows: Ints) -> Floats:
        """[n]: M."""
        found: Floats = (self.sums[rows] * _WEIGHTS).sum(axis=(1, 2))
        return found

    def position(self, row: int) -> int:
        """The position, the first being 0, that shows most."""
        return int((self.sums[row] * _WEIGHTS).sum(axis=1).argmax())

    def clear(self, rows: Ints) -> None:
        """Begin anew."""
        self.sums[rows] = 0.0


class Rises(Bets):
    """The same bets on a rise."""

    SIGN = -1
