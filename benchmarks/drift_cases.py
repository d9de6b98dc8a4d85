"""The cases of `benchmarks.drift`: what changes in the traffic, and what the detectors say of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.drift_traffic import Floats, Ints, Traffic
from policies.drift import DriftSettings, Kind
from policies.drift.streams import Streams

CLASSES: Final = (0.8, 0.7, 0.6, 0.5)
"""Acceptance of the classes at position 1."""

K: Final = 4
K_MAX: Final = 8

Change = Callable[[int], float]
"""Of the mean, by requests since it began."""


@dataclass(frozen=True, slots=True)
class Found:
    """What came of the runs in which something changed."""

    requests: NDArray[np.float64]
    """By run: requests of the class from the change to the alert; infinite where there was none."""
    early: int
    """Runs with an alert before the change."""
    called: dict[str, int]
    """Alerts by what the change was said to be."""
    elsewhere: int = 0
    """Alerts of classes in which nothing has changed."""

    def at(self, quantile: float) -> float:
        """Of the requests until the alert."""
        return float(np.quantile(self.requests, quantile, method="higher"))


def changed(
    change: Change,
    *,
    runs: int,
    seed: int,
    mean: float,
    before: int,
    longest: int,
    traffic: Traffic,
    beside: Sequence[float] = (),
    first_only: bool = False,
) -> Found:
    """A class in which acceptance changes behind `before` requests, until all runs have alerted or `longest` more.
    beside: means of other classes, whose traffic goes on as it was. first_only: position 1 changes, and no other.
    """
    rng, count = np.random.default_rng(seed), 1 + len(beside)
    means, rows = np.tile([mean, *beside], runs), np.arange(runs * count)
    mine = rows % count == 0
    streams = Streams(DriftSettings(), len(rows), seed)
    when, early = np.full(runs, np.inf), np.zeros(runs, dtype=np.bool_)
    k = np.full(len(rows), K)
    for place in range(before + longest):
        moved = mine * (change(place - before + 1) if place >= before else 0.0)
        at = (means, moved) if first_only else (means + moved, None)
        rates, examined = traffic.draw(rng, at[0], k, at[1])
        streams.observe(rows, rates, examined, np.full(len(rows), float(place)))
        fell = streams.flags.fell[mine] & np.isinf(when) & ~early
        if place < before:
            early |= fell
        else:
            when[fell] = place - before + 1
        if (early | np.isfinite(when)).all():
            break
    kinds = [fall.shape.kind for row, fall in streams.found.items() if mine[row]]
    return Found(
        when[~early],
        int(early.sum()),
        {kind: kinds.count(kind) for kind in (Kind.STEP, Kind.DECAY)},
        elsewhere=int(streams.flags.fell[~mine].sum()),
    )


@dataclass(frozen=True, slots=True)
class Stationary:
    """Traffic in which no draft becomes worse."""

    name: str
    means: tuple[float, ...] = CLASSES
    mixes: tuple[tuple[float, ...], ...] = ((0.25, 0.25, 0.25, 0.25),)
    """Shares of the classes, one part of the run after another."""
    k_wanders: bool = False
    off: tuple[int, int] = (0, 0)
    """Requests from which to which drafting is off."""


STATIONARY: Final = (
    Stationary("four classes, nothing changes"),
    Stationary("mix of two classes from 50/50 to 5/95", (0.75, 0.45), ((0.5, 0.5), (0.05, 0.95))),
    Stationary("k wanders between 0 and 8", k_wanders=True),
    Stationary("drafting off for an hour", off=(8000, 11_600)),
)


@dataclass(frozen=True, slots=True)
class FalseAlerts:
    """Alerts, of any kind, in runs in which none is right."""

    runs: int
    requests: int
    """Of a run, all classes together."""
    alerts: int
    highest: float
    """The highest score of any stratum at any time; an alert is at 1."""


def stationary(case: Stationary, *, runs: int, requests: int, seed: int, traffic: Traffic) -> FalseAlerts:
    """Runs side by side; each stratum is a row: run times the number of classes, plus the class."""
    rng, count = np.random.default_rng(seed), len(case.means)
    streams = Streams(DriftSettings(), runs * count, seed)
    k, alerts, highest = np.full(runs, K), np.zeros(runs * count, dtype=np.bool_), 0.0
    for place in range(requests):
        mix = case.mixes[place * len(case.mixes) // requests]
        kind = rng.choice(count, runs, p=mix)
        k = _next_k(case, place, k, rng)
        rates, examined = traffic.draw(rng, np.array(case.means)[kind], k)
        rows = np.arange(runs) * count + kind
        streams.observe(rows, rates, examined, np.full(runs, float(place)))
        flags = streams.flags
        alerts[rows] |= flags.fell[rows] | flags.collapsed[rows] | flags.looping[rows]
        highest = max(highest, float(streams.score(rows).max()))
    return FalseAlerts(runs, requests, int(alerts.sum()), highest)


def _next_k(case: Stationary, place: int, k: Ints, rng: np.random.Generator) -> Ints:
    if case.off[0] <= place < case.off[1]:
        return np.zeros_like(k)
    if case.k_wanders:
        found: Ints = (k + rng.integers(-1, 2, len(k))).clip(0, K_MAX)
        return found
    return np.full_like(k, K)


def spread_of_rates(traffic: Traffic, mean: float, seed: int) -> tuple[float, float]:
    """Standard deviation of requests' rates at position 1: as it is, and as if tokens were independent."""
    rng, many = np.random.default_rng(seed), 20_000
    rates, examined = traffic.draw(rng, np.full(many, mean), np.full(many, K))
    alone: Floats = mean * (1 - mean) / examined[:, 0]
    return float(rates[:, 0].std()), float(np.sqrt(alone.mean()))
