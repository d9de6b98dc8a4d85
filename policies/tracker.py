"""Coefficients that are followed through noise: of a sum of costs, one for each kind of thing that a step had.

    seconds = amounts . coefficients,   each coefficient >= 0

A Kalman filter. What is known of one coefficient says something of the others, by the covariance it begins with: where
only one kind of step is ever seen, all are scaled together. Three things are added to the textbook:

noise     is a share of what is expected, and learned; so is a drift of all coefficients together, which is followed at
          the same rate whatever the noise
outlier   what is further off than could be expected is taken to be off by no more than noise can be
change    outliers that follow one another, all to one side, are none: the machine has become so much slower or faster
"""

from math import exp, log, sqrt
from statistics import median
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

LASTING: Final = 8
"""Outliers to one side, one after another, that make a change."""

_FAR: Final = 3.0  # standard deviations, beyond which is an outlier
_NOISE: Final = (0.01, 0.05, 0.3)  # relative standard deviation: least, at first, most
_NOISE_RATE: Final = 0.02
_DEVIATION: Final = 1.25  # standard deviations in a mean absolute one, of a normal law
_DRIFT: Final = (
    0.03  # of the noise, in a step: all together are followed within about as many steps as its inverse
)
_RELAX: Final = 1e-5  # in a step, of the way from what is known back to what was known at first


class _Run(NamedTuple):
    """Outliers to one side, one after another, and what was known before them."""

    coefficients: Vector
    covariance: Vector
    ratios: list[float]  # logarithms of seen over expected by these coefficients


class Tracker:
    """Follows the coefficients of one sum."""

    def __init__(self, start: Vector, covariance: Vector) -> None:
        """start: [D], the coefficients as they are thought to be; covariance: [D, D], how far they may be off."""
        self.now: Vector = start.copy()
        """[D]. Not to be written to."""
        self._covariance = covariance.copy()
        self._first = covariance.copy()
        self._relaxed = _RELAX * covariance
        self._noise = _NOISE[1]
        self._run: _Run | None = None

    def observe(self, amounts: Vector, seconds: float) -> bool:
        """Learn from one step. True where it showed that everything has changed."""
        expected = float(amounts @ self.now)
        if seconds <= 0.0 or expected <= 0.0:
            return False
        gain = self._covariance @ amounts
        noise = self._noise * expected
        variance = max(float(amounts @ gain), 0.0) + noise * noise
        off, ratio = seconds - expected, log(seconds) - log(expected)
        if abs(ratio) > _FAR * sqrt(variance) / expected:
            if self._follows(amounts, seconds, ratio):
                return True
            off = max(min(off, _FAR * noise), -_FAR * noise)
        else:
            self._run = None
        self._learn(gain, off, variance)
        self._hear(abs(ratio))
        return False

    def _learn(self, gain: Vector, off: float, variance: float) -> None:
        self.now += gain * (off / variance)
        np.maximum(self.now, 0.0, out=self.now)
        drift = self.now * (_DRIFT * self._noise)
        covariance = self._covariance
        covariance *= 1.0 - _RELAX
        covariance += self._relaxed
        covariance += drift[:, None] * drift
        covariance -= (gain / variance)[:, None] * gain

    def _hear(self, off: float) -> None:
        """Learn how large the noise is. One outlier says little of it."""
        least, _, most = _NOISE
        seen = _DEVIATION * min(off, _FAR * self._noise)
        self._noise = min(max(self._noise + _NOISE_RATE * (seen - self._noise), least), most)

    def _follows(self, amounts: Vector, seconds: float, ratio: float) -> bool:
        """Count an outlier. Where it is the last that a change needs, take the change for what it is."""
        run = self._run
        if run is None or (run.ratios[0] > 0.0) is not (ratio > 0.0):
            run = self._run = _Run(self.now.copy(), self._covariance.copy(), [])
        expected = float(amounts @ run.coefficients)
        if expected <= 0.0:  # of a kind that was thought to cost nothing: no measure of a change of all
            return False
        run.ratios.append(log(seconds) - log(expected))
        if len(run.ratios) < LASTING:
            return False
        scale = exp(median(run.ratios))
        self._first *= scale * scale
        self._relaxed *= scale * scale
        self.now = run.coefficients * scale
        self._covariance = run.covariance * (scale * scale) + self._first
        self._run = None
        return True

    def spread(self) -> Vector:
        """[D]: variances of the coefficients."""
        return np.diagonal(self._covariance)
