"""The alarm: takes in what the engine did, asks the rules once a second, and tells the receivers."""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from engine.api import StepReport
from specd.alerts.delivery import Deliveries, Outbox
from specd.alerts.events import Events
from specd.alerts.finding import NAMES, Finding, Pair, pair_of
from specd.alerts.lifecycle import Alert, Lifecycle, State
from specd.alerts.receivers.webhook import rfc3339
from specd.alerts.rules import SOURCE, Evidence, evaluate, watching
from specd.config.schema import AlertsSection
from specd.telemetry.prometheus import Metrics

log: Final = logging.getLogger(__name__)

_INTERVAL: Final = 1.0
_REMEMBERED: Final = 32

Source = Callable[[float], Iterable[Finding]]
"""Asked once a second, with the time in Unix seconds, for all that it has to say."""


class AlertManager:
    """Wires whoever has findings, lifecycle and outbox; decides nothing itself."""

    def __init__(
        self,
        alerts: AlertsSection,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
        outbox: Outbox | None = None,
    ) -> None:
        """`clock` gives Unix seconds. Raises `UserError` when a receiver cannot be used."""
        self._rules = alerts.rules
        self._metrics = metrics
        self._clock = clock
        self._outbox = outbox or Deliveries(alerts.receivers, metrics, clock=clock)
        self._evidence = Evidence(_horizon(alerts))
        self.events = Events()
        self._lifecycle = Lifecycle(self._context)
        self._sources: list[Source] = [self._floors]
        self._resolved: deque[Alert] = deque(maxlen=_REMEMBERED)
        self._pair = Pair("", "")
        self._task: asyncio.Task[None] | None = None
        self._count()

    def observe(self, report: StepReport) -> None:
        """Take in one engine step."""
        self._evidence.observe(report.rounds, self._clock())

    def engine_died(self, why: str) -> None:
        """The engine process is being replaced."""
        self.events.note("engine_restart", why, self._clock())

    def set_identity(self, target_revision: str, draft_revision: str) -> None:
        """This pair is served from now on: alerts of another end, and what was seen of it is forgotten."""
        pair = Pair(target_revision, draft_revision)
        if pair == self._pair:
            return
        self._pair = pair
        self._evidence.clear()
        self._publish(self._lifecycle.end(self._of_another_pair, self._clock()))

    def configure(self, alerts: AlertsSection) -> None:
        """Take over new rules and receivers; secret files are read again.

        An alert that no rule watches any more ends. Raises `UserError` and changes nothing when a receiver
        cannot be used.
        """
        self._outbox.configure(alerts.receivers)
        self._rules = alerts.rules
        self._evidence.horizon = _horizon(alerts)
        self._publish(self._lifecycle.end(self._unwatched, self._clock()))

    def watch(self, source: Source) -> None:
        """From now on, ask this one too."""
        self._sources.append(source)

    def judge(self, findings: Iterable[Finding]) -> None:
        """Take in findings that are made once, when something was found out, such as a canary's."""
        self._publish(self._lifecycle.step(findings, self._clock()))

    def tick(self, now: float) -> None:
        """Ask every source. Needs a running event loop, since receivers may have to be told."""
        for source in self._sources:
            self._publish(self._lifecycle.step(source(now), now))

    def snapshot(self) -> list[dict[str, Any]]:
        """For people: open alerts, oldest first, then those that ended lately."""
        return [_as_json(alert) for alert in (*self._lifecycle.open(), *self._resolved)]

    def counts(self) -> dict[str, int]:
        """Open alerts by state."""
        found = Counter(alert.state.value for alert in self._lifecycle.open())
        return {state.value: found[state.value] for state in (State.PENDING, State.FIRING)}

    def start(self) -> None:
        """Begin to tick, once a second, until `aclose`."""
        self._task = asyncio.create_task(self.run())

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            try:
                self.tick(self._clock())
            except Exception:
                # Whatever is wrong, an alarm that has died without a word is worse.
                log.exception("the alert rules could not be evaluated")
            await asyncio.sleep(_INTERVAL)

    async def aclose(self, grace: float) -> None:
        """Stop ticking and give what is pending `grace` seconds to be delivered."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._outbox.aclose(grace)

    def _floors(self, now: float) -> list[Finding]:
        return evaluate(self._rules, self._evidence, self._pair, now)

    def _context(self, finding: Finding, now: float) -> dict[str, str]:
        since = now if finding.since is None else finding.since
        return {"since": rfc3339(since), "suspected_cause": self.events.suspect(since)}

    def _of_another_pair(self, alert: Alert) -> str | None:
        pair = pair_of(alert.labels)
        return None if pair in {None, self._pair} else "another pair of revisions is served"

    def _unwatched(self, alert: Alert) -> str | None:
        watched = alert.source != SOURCE or watching(self._rules, alert.labels)
        return None if watched else "no rule watches this any more"

    def _publish(self, changed: Iterable[Alert]) -> None:
        for alert in changed:
            why = f" ({alert.annotations['resolution']})" if alert.state is State.RESOLVED else ""
            log.warning("alert %s%s: %s", alert.state, why, alert.annotations["summary"])
            if alert.state is not State.PENDING:
                self._outbox.put(alert)
            if alert.state is State.RESOLVED:
                self._resolved.append(alert)
        self._count()

    def _count(self) -> None:
        counts = Counter(
            {(name, state.value): 0 for name in NAMES for state in (State.PENDING, State.FIRING)}
        )
        counts.update((alert.name, alert.state.value) for alert in self._lifecycle.open())
        self._metrics.set_alerts(counts)


def _horizon(alerts: AlertsSection) -> float:
    return max((rule.window_seconds for rule in alerts.rules), default=0.0)


def _as_json(alert: Alert) -> dict[str, Any]:
    return {
        "name": alert.name,
        "state": alert.state.value,
        "labels": alert.labels,
        "annotations": alert.annotations,
        "startsAt": rfc3339(alert.starts_at),
        "endsAt": None if alert.ends_at is None else rfc3339(alert.ends_at),
        "fingerprint": alert.fingerprint,
    }
