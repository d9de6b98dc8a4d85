"""Which drafted tokens would be accepted.

trait    of a class: how likely its requests' first drafted token is to be accepted, how much they differ, and how that
         falls from position to position
stretch  of a text: as many tokens as `switch_every`, in which its acceptance is one; the next is drawn anew
coin     of a token of a text: the drafted token at this place is accepted where the coin is below its acceptance

All of it is a function of the seed, the request and the place in its text. So every policy meets the same texts, and
what differs between them is what they did.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

_COINS: Final = 1 << 20
_QUANTILES: Final = 1 << 12
_STRIDE: Final = 7919  # coins between those that stretches of a text are drawn with
_DAY: Final = 3600.0  # seconds in which acceptance drifts there and back
_HIGHEST: Final = 0.995


@dataclass(frozen=True, slots=True)
class Traits:
    """Of a traffic class. The conditional acceptance of position j is `first * fall ** (j - 1)`."""

    first: float  # mean over requests
    spread: float = 0.15  # standard deviation over requests
    fall: float = 0.95


DEFAULT: Final = Traits(0.55)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How acceptance is distributed, and how it moves."""

    classes: Mapping[str, Traits] = field(default_factory=dict)
    other: Traits = DEFAULT  # of classes that are not there
    switch_every: int = 0  # tokens of a stretch; 0: a text has one acceptance from its start to its end
    drift: float = 0.0  # by how much all acceptance rises and falls, once an hour

    def of(self, traffic_class: str) -> Traits:
        """Of a class."""
        return self.classes.get(traffic_class, self.other)


class Texts:
    """The texts of a trace's requests."""

    def __init__(
        self, acceptance: Acceptance, classes: tuple[str, ...], kind: NDArray[np.int64], k_max: int, seed: int
    ) -> None:
        """kind: [n], each request's index into `classes`."""
        self._rng = np.random.default_rng(seed)
        self._coins = self._rng.random(_COINS)
        self._start = self._rng.integers(_COINS, size=len(kind))  # [n]
        self._kind = kind
        self._switch_every = acceptance.switch_every
        self._drift = acceptance.drift
        traits = [acceptance.of(name) for name in classes]
        self._quantiles = np.array([self._firsts(each) for each in traits])  # [classes, _QUANTILES]
        self._falls = np.array([each.fall ** np.arange(k_max) for each in traits])  # [classes, k_max]
        self.k_max = k_max
        self._places = np.arange(k_max)

    @property
    def switches(self) -> bool:
        """Whether a text's acceptance changes on its way."""
        return self._switch_every > 0

    def stretch(self, place: NDArray[np.int64]) -> NDArray[np.int64]:
        """[b]: which stretch of its text a place is in."""
        return place // self._switch_every if self._switch_every else np.zeros_like(place)

    def rates(self, requests: NDArray[np.int64], stretch: NDArray[np.int64]) -> NDArray[np.float64]:
        """[b, k_max]: conditional acceptance by position."""
        drawn = self._coins[(self._start[requests] + _STRIDE * (stretch + 1)) % _COINS]
        kind = self._kind[requests]
        first = self._quantiles[kind, (drawn * _QUANTILES).astype(np.int64)]
        rates: NDArray[np.float64] = first[:, None] * self._falls[kind]
        return rates

    def accepted(
        self,
        requests: NDArray[np.int64],
        place: NDArray[np.int64],
        rates: NDArray[np.float64],
        k: NDArray[np.int64],
        now: float,
    ) -> NDArray[np.int64]:
        """[b]: how many of `k` drafted tokens are accepted where each text has `place` tokens. rates: [b, k_max]."""
        deepest = int(k.max())
        coins = self._coins[
            ((self._start[requests] + place)[:, None] + self._places[:deepest]) & (_COINS - 1)
        ]
        rates = rates[:, :deepest]
        if self._drift:
            rates = np.clip(rates + self._drift * np.sin(2 * np.pi * now / _DAY), 0.0, _HIGHEST)
        kept = np.zeros((len(k), deepest + 1), dtype=np.bool_)
        np.less(coins, rates, out=kept[:, :deepest])
        accepted: NDArray[np.int64] = np.minimum(kept.argmin(axis=1), k)
        return accepted

    def _firsts(self, traits: Traits) -> NDArray[np.float64]:
        """[_QUANTILES]: first acceptances of a class, ascending: a beta law's, by as many draws."""
        mean, variance = min(max(traits.first, 0.001), 0.999), traits.spread**2
        weight = mean * (1 - mean) / variance - 1 if variance else 0.0
        if weight <= 0:  # no spread, or more of it than there can be
            return np.full(_QUANTILES, mean)
        draws = self._rng.beta(mean * weight, (1 - mean) * weight, size=_QUANTILES)
        return np.minimum(np.sort(draws), _HIGHEST)
