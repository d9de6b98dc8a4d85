"""Requests that got no answer, or half of one, by the code that their clients were told."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from specd.telemetry.families import counter

_KNOWN: Final = (
    "queue_full",
    "rate_limit_exceeded",
    "request_timeout",
    "deadline_exceeded",
    "slow_reader",
    "engine_restarted",
    "engine_unavailable",
    "engine_error",
    "internal_error",
    "request_refused",
    "shutting_down",
)


class Refusals(Collector):
    """Counts them."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(_KNOWN, 0))

    def count(self, code: str) -> None:
        """One more; codes are the daemon's own words."""
        self._counts[code] += 1

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        yield counter(
            "specd_requests_unserved_total",
            "Requests that got no answer, or half of one, by the code that their clients were told.",
            ("code",),
            [((code,), count) for code, count in self._counts.items()],
        )
