"""How attempts to change the target ended: counted for Prometheus, and told by an alert where nobody heard of it."""

from collections.abc import Iterator
from typing import Final, Literal, get_args

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from specd.alerts.finding import Finding, Verdict
from specd.target.outcome import Last
from specd.telemetry.families import counter

SOURCE: Final = "update"

_TOLD_FOR: Final = 3600.0

Ending = Literal["changed", "unchanged", "refused", "ruled_out"]
"""ruled_out: by what the canary said."""


class Attempts(Collector):
    """Updates, refreshes and rollbacks, whoever asked for them."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = dict.fromkeys(get_args(Ending), 0)
        self._refused: Last | None = None
        self._stands = False

    def ended(self, how: Ending, last: Last) -> None:
        """Count it. What the canary rules out is told for an hour: whoever asked has heard of it, but nobody else."""
        self._counts[how] += 1
        if how in {"changed", "unchanged"}:
            self._refused, self._stands = None, False
        elif how == "ruled_out":
            self._refused = last

    def unheard(self, last: Last) -> None:
        """It was refused, and nobody waits for the answer: it is told until another attempt ends."""
        self._refused, self._stands = last, True

    def findings(self, now: float) -> list[Finding]:
        """For the alarm."""
        refused = self._refused
        told = refused is not None and (self._stands or 0 <= now - refused.unix_time < _TOLD_FOR)
        labels = {"alertname": "SpecdTargetUpdateRefused", "severity": "warning"}
        if refused is None or not told:
            texts = {"summary": "No update of the target stands refused"}
            return [Finding(SOURCE, labels, Verdict.FINE, texts)]
        texts = {
            "summary": "An update of the target was refused, and what served before serves on",
            "description": refused.text,
            "resolution": "another attempt has ended, or an hour has gone by",
        }
        return [Finding(SOURCE, labels, Verdict.BREACHED, texts, since=refused.unix_time)]

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        yield counter(
            "specd_target_updates_total",
            "Updates, refreshes and rollbacks of the target by how they ended.",
            ("outcome",),
            [((how,), count) for how, count in self._counts.items()],
        )
