"""The alarm: takes in what the engine did, asks whoever watches once a second, and tells the receivers."""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from engine.api import StepReport
from specd.alerts.delivery import Outbox
from specd.alerts.events import Events
from specd.alerts.finding import NAMES, OBSERVED, Finding, Pair, pair_of
from specd.alerts.health import Health
from specd.alerts.lifecycle import Alert, Lifecycle, State
from specd.alerts.receivers.base import rfc3339
from specd.alerts.rules import SOURCE, Before, Evidence, evaluate, unknown, watching
from specd.alerts.silences import Silence, Silences
from specd.alerts.store import Changes, Saved
from specd.alerts.telling import Muting, Notice, Told, firing_notices, resolved_notices
from specd.config.alerts import AlertsSection
from specd.tasks import ended
from specd.telemetry.alarm import AlarmMetrics

log: Final = logging.getLogger(__name__)

_INTERVAL: Final = 1.0
_REMEMBERED: Final = 32
_OPEN_STATES: Final = (State.PENDING, State.FIRING)

Source = Callable[[float], Iterable[Finding]]
"""Asked once a second, with the time in Unix seconds, for all that it has to say."""


class AlertManager:
    """Wires whoever has findings, lifecycle, telling and outbox; decides nothing itself."""

    def __init__(
        self,
        alerts: AlertsSection,
        metrics: AlarmMetrics,
        outbox: Outbox,
        *,
        saved: Saved | None = None,
        clock: Callable[[], float] = time.time,
        health: Health | None = None,
    ) -> None:
        """`clock` gives Unix seconds; `saved` is what an earlier daemon left."""
        self._alerts = alerts
        self._metrics = metrics
        self._clock = clock
        self._outbox = outbox
        self._evidence = Evidence(_horizon(alerts))
        self.events = Events()
        self._silences = Silences()
        self._lifecycle = Lifecycle(self._context)
        self._muting = Muting(
            self._silences, self.events, self._lifecycle.all, grace_seconds=alerts.update_grace_seconds
        )
        self._told: Told = {}
        self._health = health or Health()
        self._sources: list[Source] = [self._floors, self._health.findings]
        self._resolved: deque[Alert] = deque(maxlen=_REMEMBERED)
        self._pair = Pair("", "")
        self.before: Before = unknown
        """Asked by the floors; set by whoever has learned what acceptance was."""
        self._task: asyncio.Task[None] | None = None
        self._restore(saved or Saved([], {}, [], []))
        self._count()

    def observe(self, report: StepReport) -> None:
        """Take in one engine step."""
        now = self._clock()
        self._evidence.observe(report.rounds, now)
        self._health.observe(report, now)

    def engine_died(self, why: str, *, foreign: bool = False) -> None:
        """The engine process is being replaced. foreign: see `Health`."""
        now = self._clock()
        self.events.note("engine_restart", why, now)
        self._health.engine_died(why, now, foreign=foreign)

    def reloaded(self, error: str | None) -> None:
        """A reload of the config was taken over, or refused for this reason."""
        self._health.reloaded(error)

    def set_identity(self, target_revision: str, draft_revision: str) -> None:
        """This pair is served from now on: alerts of another end, and what was seen of it is forgotten."""
        pair = Pair(target_revision, draft_revision)
        if pair == self._pair:
            return
        before, self._pair = self._pair, pair
        self._note_pair(before, pair)
        self._evidence.clear()
        self._publish(self._lifecycle.end(self._of_another_pair, self._clock()))

    def configure(self, alerts: AlertsSection) -> None:
        """Take over new rules and receivers; secret files are read again.

        An alert that no rule watches any more ends. Raises `UserError` and changes nothing when a receiver
        cannot be used.
        """
        self._outbox.configure(alerts.receivers)
        self._alerts = alerts
        self._muting.grace_seconds = alerts.update_grace_seconds
        self._evidence.horizon = _horizon(alerts)
        self._publish(self._lifecycle.end(self._unwatched, self._clock()))

    def watch(self, source: Source) -> None:
        """From now on, ask this one too."""
        self._sources.append(source)

    def judge(self, findings: Iterable[Finding]) -> Awaitable[None]:
        """Take in findings that are made once, when something was found out, such as a canary's.

        Done when what follows from them is on the disk.
        """
        return self._publish(self._lifecycle.step(findings, self._clock()))

    def end(self, why: Callable[[Alert], str | None]) -> Awaitable[None]:
        """End every open alert for which there is a clause. Done when that is on the disk."""
        return self._publish(self._lifecycle.end(why, self._clock()))

    def tick(self, now: float) -> None:
        """Ask every source. Needs a running event loop, since receivers may have to be told."""
        findings = [finding for source in self._sources for finding in source(now)]
        gone = self._silences.forget(now)
        ended = self._lifecycle.end(self._unwatched, now)
        self._publish(ended + self._lifecycle.step(findings, now), dict.fromkeys(gone))

    def silence(self, silence: Silence) -> Awaitable[None]:
        """In force from now on; done when it is on the disk. Raises `UserError`."""
        self._silences.add(silence)
        return self._publish([], {silence.id: silence})

    def unsilence(self, name: str) -> Awaitable[None] | None:
        """No longer in force; None where there is no silence of this id."""
        if self._silences.delete(name) is None:
            return None
        return self._publish([], {name: None})

    def silences(self) -> list[Silence]:
        """In force, to come, or ended within a day."""
        return self._silences.all()

    def snapshot(self) -> list[dict[str, Any]]:
        """For people: open alerts, oldest first, then those that ended lately."""
        now = self._clock()
        opened = [_as_json(one.alert, self._muting.why(one, now)) for one in self._lifecycle.all()]
        return opened + [_as_json(alert, None) for alert in self._resolved]

    def counts(self) -> dict[str, int]:
        """Open alerts by state."""
        found = Counter(alert.state.value for alert in self._lifecycle.open())
        return {state.value: found[state.value] for state in _OPEN_STATES}

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
                log.exception("the alerts could not be judged")
            await asyncio.sleep(_INTERVAL)

    async def aclose(self) -> None:
        """Stop ticking. The outbox goes on."""
        await ended(self._task)

    def _restore(self, saved: Saved) -> None:
        self._lifecycle.restore(saved.alerts)
        self._silences.restore(saved.silences)
        self.events.restore(saved.events)
        self._told.update(saved.told)
        if saved.alerts:
            log.warning("%d alerts were open when specd ended: they go on", len(saved.alerts))

    def _note_pair(self, before: Pair, pair: Pair) -> None:
        if not before.target_revision:
            text = f"target {pair.target_revision}, draft {pair.draft_revision}"
            self.events.note("start", text, self._clock())
        elif before.target_revision != pair.target_revision:
            self.events.note(
                "target_update", f"{before.target_revision} to {pair.target_revision}", self._clock()
            )
        else:
            self.events.note(
                "draft_update", f"{before.draft_revision} to {pair.draft_revision}", self._clock()
            )

    def _floors(self, now: float) -> list[Finding]:
        return evaluate(self._alerts.rules, self._evidence, self._pair, now, self.before)

    def _context(self, finding: Finding, now: float) -> dict[str, str]:
        since = now if finding.since is None else finding.since
        runbook = f"{self._alerts.runbook_url}#{finding.labels['alertname'].lower()}"
        return {
            **self._served(finding),
            "since": rfc3339(since),
            "suspected_cause": self.events.suspect(since),
            "runbook_url": runbook,
        }

    def _served(self, finding: Finding) -> dict[str, str]:
        """The pair, of an alert that is about no other one and has it in no label."""
        if finding.labels.keys() & {"target_revision", OBSERVED} or not self._pair.target_revision:
            return {}
        return {
            "target_revision": self._pair.target_revision,
            "draft_revision": self._pair.draft_revision,
        }

    def _of_another_pair(self, alert: Alert) -> str | None:
        pair = pair_of(alert.labels)
        return None if pair in {None, self._pair} else "another pair of revisions is served"

    def _unwatched(self, alert: Alert) -> str | None:
        watched = alert.source != SOURCE or watching(self._alerts.rules, alert.labels)
        return None if watched else "no rule watches this any more"

    def _publish(
        self, changed: Sequence[Alert], silences: dict[str, Silence | None] | None = None
    ) -> Awaitable[None]:
        """Log, decide who is told, and write it all down at once."""
        for alert in changed:
            why = f" ({alert.annotations['resolution']})" if alert.state is State.RESOLVED else ""
            log.warning("alert %s%s: %s", alert.state, why, alert.annotations["summary"])
        ended = [alert for alert in changed if alert.state is State.RESOLVED]
        self._resolved.extend(ended)
        before = dict(self._told)
        notices = self._notices(ended)
        self._count()
        changes = Changes(
            alerts=self._lifecycle.changed(),
            told=_differences(before, self._told),
            silences=silences or {},
            events=self.events.fresh(),
        )
        return self._outbox.put(changes, notices) if changes or notices else _Done()

    def _notices(self, ended: Sequence[Alert]) -> list[Notice]:
        now, listeners = self._clock(), self._outbox.listeners()
        over = resolved_notices(ended, listeners, self._told)
        news = firing_notices(
            self._lifecycle.all(), listeners, self._told, lambda one: self._muting.why(one, now), now
        )
        by_key = {one.alert.fingerprint: one for one in self._lifecycle.all()}
        return over + [
            replace(notice, alert=self._muting.not_recovered(by_key[notice.alert.fingerprint]))
            for notice in news
        ]

    def _count(self) -> None:
        counts = Counter({(name, state.value): 0 for name in NAMES for state in _OPEN_STATES})
        counts.update((alert.name, alert.state.value) for alert in self._lifecycle.open())
        now = self._clock()
        self._metrics.set_alerts(counts, sum(one.state(now) == "active" for one in self._silences.all()))


def _horizon(alerts: AlertsSection) -> float:
    return max((rule.window_seconds for rule in alerts.rules), default=0.0)


def _differences(before: Told, after: Told) -> dict[tuple[str, str], float | None]:
    return {key: after.get(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


class _Done:
    """Nothing to wait for."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


def _as_json(alert: Alert, muted: str | None) -> dict[str, Any]:
    return {
        "name": alert.name,
        "state": alert.state.value,
        "muted": muted,
        "labels": alert.labels,
        "annotations": alert.annotations,
        "startsAt": rfc3339(alert.starts_at),
        "endsAt": None if alert.ends_at is None else rfc3339(alert.ends_at),
        "fingerprint": alert.fingerprint,
    }
