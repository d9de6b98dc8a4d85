"""All that looks at requests as they end: drift detectors and reports."""

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from policies.drift import Stratum
from policies.drift.losing import Losing
from specd.alerts.finding import Finding, Pair
from specd.alerts.lifecycle import Alert
from specd.alerts.manager import AlertManager
from specd.alerts.signals import is_loss, tells_of
from specd.config.schema import Config
from specd.telemetry.drift import Drift
from specd.telemetry.finished import EarlierRequests, Requests
from specd.telemetry.prometheus import Metrics
from specd.telemetry.reports import Reports

log: Final = logging.getLogger(__name__)


class RequestWatch:
    """Wires them to the engine, the alarm and the scrape."""

    def __init__(
        self,
        config: Config,
        directory: Path,
        alerts: AlertManager,
        metrics: Metrics,
        *,
        losing: Losing,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """directory: where what the detectors have learned outlives the daemon. losing: fed by whoever sees steps."""
        self._drift = Drift(config.drift, directory, clock, losing=losing)
        self._reports = Reports(config.telemetry)
        self._losing = losing
        self._policy = config.policy
        self._clock = clock
        self._alerts = alerts
        self._pair: tuple[str, str] | None = None
        self.observer = Requests(self._drift, self._reports, clock=clock)
        self.aftermath = EarlierRequests(self.observer)
        alerts.before = self._drift.baseline
        alerts.watch(self._drift.findings)
        alerts.watch(self._losses)
        metrics.include(self._drift)
        metrics.include(self._reports)

    def configure(self, config: Config) -> None:
        """Take over new settings. What was lost was lost by the policy of before."""
        self._drift.configure(config.drift)
        self._reports.configure(config.telemetry)
        if config.policy != self._policy:
            self._policy = config.policy
            self._losing.clear()
            self._alerts.end(lambda alert: "the policy is another one now" if is_loss(alert.labels) else None)

    def set_identity(self, target_revision: str, draft_revision: str) -> None:
        """This pair is served from now on."""
        pair = (target_revision, draft_revision)
        if self._pair not in {None, pair}:
            self._reports.updated(*pair, now=self._clock())
        self._pair = pair
        self._drift.set_identity(*pair)
        self.observer.set_identity(*pair)

    def snapshot(self) -> list[dict[str, Any]]:
        """For people: every stratum, with its baseline and how it stands."""
        return self._drift.snapshot()

    async def accept(self, wanted: Callable[[Stratum], bool]) -> list[Stratum]:
        """What strata that are wanted show now is meant to be so: their alerts end, and new baselines are learned."""
        found = self._drift.accept(wanted)
        for stratum in found:
            log.warning("what acceptance of %s is now has been accepted", stratum)
        await self._alerts.end(lambda alert: _accepted(alert, found))
        return found

    def start(self) -> None:
        """Begin to write, until `aclose`."""
        self._drift.start()
        self._reports.start()

    async def aclose(self) -> None:
        """Write what is left."""
        await self._drift.aclose()
        await self._reports.aclose()

    def _losses(self, now: float) -> list[Finding]:
        return [] if self._pair is None else self._drift.losses(now, Pair(*self._pair))


def _accepted(alert: Alert, strata: Iterable[Stratum]) -> str | None:
    """Why an alert ends, if it is of one of these."""
    mine = any(tells_of(alert.source, alert.labels, stratum) for stratum in strata)
    return "what acceptance is now was accepted by hand" if mine else None
