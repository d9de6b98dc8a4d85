"""The last hour in figures, so that whoever opens the dashboard after an alert sees what came before it."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

log: Final = logging.getLogger(__name__)

EVERY: Final = 10.0
"""Seconds between two points: those over which the daemon counts its tokens per second."""

_POINTS: Final = 360
_STRATA: Final = 12

Stratum = tuple[str, str, str, bool]
Look = Callable[[], Mapping[str, Any]]


class _Point(NamedTuple):
    tokens_per_second: float
    running: int
    waiting: int
    acceptance: dict[Stratum, tuple[float | None, float | None]]
    """Of the last requests, and the baseline."""


class History:
    """A point every ten seconds."""

    def __init__(self, status: Look, clock: Callable[[], float] = time.time) -> None:
        """status: as the admin listener gives it. clock: gives Unix seconds."""
        self._status = status
        self._clock = clock
        self._points: deque[_Point] = deque(maxlen=_POINTS)
        self._ends_at = 0.0

    async def run(self) -> None:
        """Note a point again and again, until cancelled."""
        while True:
            try:
                self.note()
            except Exception:
                log.exception("the last hour lacks a point")  # which is no reason for the daemon to end
            await asyncio.sleep(EVERY)

    def note(self) -> None:
        """How it stands now."""
        status = self._status()
        load = status["load"]
        self._ends_at = self._clock()
        self._points.append(
            _Point(
                status["drafts"]["tokens_per_second"],
                load["running"],
                load["waiting"],
                {_stratum(one): (one["now"], one["baseline"]) for one in _busiest(status["drift"])},
            )
        )

    def snapshot(self) -> dict[str, Any]:
        """In columns, oldest first; None where nothing was known."""
        points = self._points
        strata = dict.fromkeys(stratum for point in points for stratum in point.acceptance)
        return {
            "every_seconds": EVERY,
            "ends_at": self._ends_at,
            "tokens_per_second": [point.tokens_per_second for point in points],
            "running": [point.running for point in points],
            "waiting": [point.waiting for point in points],
            "acceptance": [self._acceptance(stratum) for stratum in strata],
        }

    def _acceptance(self, stratum: Stratum) -> dict[str, Any]:
        traffic_class, temperature, proposer, by_chance = stratum
        pairs = [point.acceptance.get(stratum, (None, None)) for point in self._points]
        return {
            "traffic_class": traffic_class,
            "temperature": temperature,
            "proposer": proposer,
            "by_chance": by_chance,
            "now": [now for now, _ in pairs],
            "baseline": [baseline for _, baseline in pairs],
        }


def _stratum(one: Mapping[str, Any]) -> Stratum:
    return one["traffic_class"], one["temperature"], one["proposer"], one["by_chance"]


def _busiest(strata: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those with a baseline of the most requests: there may be hundreds."""
    return sorted(strata, key=lambda one: -one["requests"])[:_STRATA]
