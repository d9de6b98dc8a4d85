"""From intervals between looks to reports that can be compared with one another.

The detectors of `policies.drift` take one piece of evidence after the other, and need them to come in no particular
order while nothing changes. A request that runs through several intervals is in all of them, so that neighbours
resemble each other, and whatever is made of every interval would cry wolf. Hence:

report     intervals together, until enough requests have ended in them, several times as many as ran at once. It is
           one piece of evidence, however many tokens it has
wash       what follows a report and is not looked at: until as many requests have ended as ran at its end. So hardly
           any request is in two reports
An engine that counts requests when they end (`Counters.whole`) needs no wash: none is ever in two intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import isnan
from typing import Final, Self

from policies.observed.counters import Counters

POSITIONS: Final = "by position"
"""The measure of engines that tell what was kept at each."""

_TURNS: Final = 2.0
"""How many times the requests that run at once have to end within a report."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a piece of traffic showed, normalised so that the k in force does not matter, as far as that can be had."""

    t: float
    """Unix seconds at its end."""
    measure: str
    """What its rates are of. Only reports of one measure can be compared."""
    examined: tuple[int, ...]
    """By draft position, from the first on as far as it is known."""
    accepted: tuple[int, ...]
    tokens: int

    @classmethod
    def of(cls, came: Counters, t: float) -> Self | None:
        """Where the engine tells what it kept by position, each position is one of its own: whether the first drafted
        token is kept does not depend on how many follow it. The later ones were examined as often as the one before was
        kept, if each draft went as far; where drafts are of different lengths that is not known, and only the first one
        counts. An engine that tells totals alone is compared at the same k alone, where it tells its k; else there is
        nothing that could be compared.
        """
        tokens = 0 if isnan(came.generated) else round(came.generated)
        if came.kept:
            examined = came.examined or _reached(came)
            depth = min(len(examined), len(came.kept))
            return cls(t, POSITIONS, _whole(examined[:depth]), _whole(came.kept[:depth]), tokens)
        if came.k and not isnan(came.drafted):
            return cls(t, f"{came.k} drafted", _whole([came.drafted]), _whole([came.accepted]), tokens)
        return None


def _reached(came: Counters) -> tuple[float, ...]:
    """Rounds that examined each position, as far as every draft went."""
    if came.drafted == came.drafts * len(came.kept):
        depth = len(came.kept)
    else:
        depth = max(sum(1 for _ in takewhile(lambda rounds: rounds == came.drafts, came.offered)), 1)
    return (came.drafts, *came.kept[: depth - 1])


def _whole(counts: Sequence[float]) -> tuple[int, ...]:
    return tuple(round(count) for count in counts)


class Gathering:
    """Makes reports out of intervals that are evidence."""

    def __init__(self, *, least_requests: int, least_drafts: int) -> None:
        """Of a report: how many of each it has at least."""
        self.least_requests = least_requests
        self.least_drafts = least_drafts
        self._sum: Counters | None = None
        self._most_running = 0.0
        self._to_wash = 0.0

    def forget(self) -> None:
        """What comes is of another engine, or of another measure: begin anew."""
        self._sum = None
        self._most_running = self._to_wash = 0.0

    def add(self, came: Counters, t: float) -> Report | None:
        """Take in an interval that ended at t, in Unix seconds. A report, where it completes one."""
        if self._to_wash > 0:
            self._to_wash -= came.requests
            return None
        if self._sum is not None and self._sum.k != came.k:
            self.forget()
        self._sum = came if self._sum is None else _plus(self._sum, came)
        running = 0.0 if isnan(came.running) else came.running
        self._most_running = max(self._most_running, running)
        if not self._complete(self._sum):
            return None
        report = Report.of(self._sum, t)
        self.forget()
        self._to_wash = 0.0 if came.whole else running
        return report

    def _complete(self, found: Counters) -> bool:
        if found.drafts < self.least_drafts:
            return False
        if found.whole and isnan(found.requests):
            return True
        return found.requests >= max(self.least_requests, _TURNS * self._most_running)


def _plus(one: Counters, other: Counters) -> Counters:
    def added(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, ...]:
        depth = max(len(a), len(b))
        padded = ((*each, *[0.0] * (depth - len(each))) for each in (a, b))
        return tuple(x + y for x, y in zip(*padded, strict=True))

    return Counters(
        drafts=one.drafts + other.drafts,
        drafted=one.drafted + other.drafted,
        accepted=one.accepted + other.accepted,
        kept=added(one.kept, other.kept),
        offered=added(one.offered, other.offered),
        examined=added(one.examined, other.examined),
        generated=one.generated + other.generated,
        requests=one.requests + other.requests,
        running=other.running,
        k=other.k,
        whole=other.whole,
    )
