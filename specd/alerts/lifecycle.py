"""The one place where an alert is decided.

             breached           breached for `for_seconds`           fine for `keep_seconds`
  (no alert) ────────▶ PENDING ────────────────────────────▶ FIRING ─────────────────────────▶ RESOLVED
      ▲                   │ not breached
      └───────────────────┘

One open alert per fingerprint. No evidence changes nothing, and such time counts towards neither span. RESOLVED is
said once and the alert is gone. One that fires again soon after it was resolved must be fine for twice as long each
time (`keep_seconds` of 0 stays 0).
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from specd.alerts.finding import Finding, Verdict

_FINE_AGAIN: Final = "it is fine again"
_LONGEST_LOOK: Final = 10.0
_FLAP_WINDOW: Final = 3600.0
_LONGEST_KEEP: Final = 3600.0


class State(StrEnum):
    """The values are those of `specd_alerts{state}`."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert as it stood at one moment. Times are Unix seconds."""

    fingerprint: str
    source: str
    """Of the finding that began it."""
    labels: dict[str, str]
    annotations: dict[str, str]
    state: State
    starts_at: float
    """When it came into its state; for a resolved alert, when it fired."""
    ends_at: float | None = None

    @property
    def name(self) -> str:
        """The label `alertname`."""
        return self.labels["alertname"]


def fingerprint(labels: dict[str, str]) -> str:
    """The same for the same labels, whatever their order."""
    return hashlib.sha256(json.dumps(labels, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(slots=True)
class Span:
    """Seconds for which something was seen to hold, without a gap in the evidence."""

    seconds: float = 0.0
    seen_at: float | None = None

    def hold(self, now: float) -> None:
        """It holds now, and did all the time since the last look if it did then.

        Where a clock has jumped, or the machine has slept, nobody looked meanwhile: so a look is good for some
        seconds only.
        """
        if self.seen_at is not None:
            self.seconds += min(max(0.0, now - self.seen_at), _LONGEST_LOOK)
        self.seen_at = now

    def pause(self) -> None:
        """Nothing is known: what was counted stays, the time until the next look is not."""
        self.seen_at = None


@dataclass(slots=True)
class OpenAlert:
    """An alert that is not over, with what decides how it goes on. It can be written down and read again."""

    alert: Alert
    since: float
    """When it began, in Unix seconds: estimated by its finding, or the first breach."""
    context: dict[str, str] = field(default_factory=dict)
    """What was known when it began: it is not asked again."""
    breached: Span = field(default_factory=Span)
    fine: Span = field(default_factory=Span)
    refired: int = 0
    """How often in a row it has fired again soon after it was resolved."""

    def tell(self, annotations: dict[str, str]) -> Alert:
        """The alert with the texts of now."""
        self.alert = replace(self.alert, annotations={**self.context, **annotations})
        return self.alert

    def keep_seconds(self, finding: Finding) -> float:
        """How long it must be fine to be over."""
        return min(finding.keep_seconds * 2.0**self.refired, max(finding.keep_seconds, _LONGEST_KEEP))


@dataclass(frozen=True, slots=True)
class _Past:
    resolved_at: float
    refired: int


class Lifecycle:
    """The open alerts. `step` and `end` return the alerts that changed state, as they stand now."""

    def __init__(self, context: Callable[[Finding, float], dict[str, str]] | None = None) -> None:
        """`context`: annotations that an alert keeps from its first breach on, such as the suspected cause."""
        self._context = context or (lambda _finding, _now: {})
        self._open: dict[str, OpenAlert] = {}
        self._past: dict[str, _Past] = {}
        self._changed: dict[str, None] = {}  # in order

    def restore(self, alerts: Iterable[OpenAlert]) -> None:
        """Go on with these. What was not seen in between counts as no evidence."""
        for one in alerts:
            one.breached.pause()
            one.fine.pause()
            self._open[one.alert.fingerprint] = one

    def all(self) -> list[OpenAlert]:
        """Pending and firing, oldest first."""
        return list(self._open.values())

    def open(self) -> list[Alert]:
        """The same, as alerts."""
        return [one.alert for one in self._open.values()]

    def changed(self) -> dict[str, OpenAlert | None]:
        """Those that began or changed state since the last call, by fingerprint; None where they are over."""
        changed = {key: self._open.get(key) for key in self._changed}
        self._changed.clear()
        return changed

    def step(self, findings: Iterable[Finding], now: float) -> list[Alert]:
        """Take in what is said now."""
        changes = (self._apply(finding, now) for finding in findings)
        return [alert for alert in changes if alert is not None]

    def end(self, why: Callable[[Alert], str | None], now: float) -> list[Alert]:
        """End every open alert for which `why` has a clause, whatever the evidence."""
        ended = [(one.alert, reason) for one in self.all() if (reason := why(one.alert)) is not None]
        changes = (
            self._end(alert.fingerprint, {**alert.annotations, "resolution": reason}, now)
            for alert, reason in ended
        )
        return [alert for alert in changes if alert is not None]

    def _apply(self, finding: Finding, now: float) -> Alert | None:
        key = fingerprint(finding.labels)
        if finding.verdict is Verdict.BREACHED:
            return self._breach(key, finding, now)
        one = self._open.get(key)
        return None if one is None else self._not_breached(key, one, finding, now)

    def _breach(self, key: str, finding: Finding, now: float) -> Alert | None:
        one = self._open.get(key)
        before = None if one is None else one.alert.state
        if one is None:
            one = self._open[key] = self._begin(key, finding, now)
        one.breached.hold(now)
        one.fine = Span()
        alert = one.tell(finding.annotations)
        if alert.state is State.PENDING and one.breached.seconds >= finding.for_seconds:
            one.alert = alert = replace(alert, state=State.FIRING, starts_at=now)
        if alert.state is before:
            return None
        self._changed[key] = None
        return alert

    def _begin(self, key: str, finding: Finding, now: float) -> OpenAlert:
        past = self._past.get(key)
        flaps = past is not None and 0 <= now - past.resolved_at <= _FLAP_WINDOW
        return OpenAlert(
            Alert(key, finding.source, finding.labels, {}, State.PENDING, starts_at=now),
            since=now if finding.since is None else finding.since,
            context=self._context(finding, now),
            refired=past.refired + 1 if past is not None and flaps else 0,
        )

    def _not_breached(self, key: str, one: OpenAlert, finding: Finding, now: float) -> Alert | None:
        one.breached.pause()
        if finding.verdict is Verdict.NO_EVIDENCE:
            one.fine.pause()
            return None
        if finding.verdict is Verdict.FINE:
            one.fine.hold(now)
        else:
            one.fine = Span()
        over = finding.verdict is Verdict.FINE and one.fine.seconds >= one.keep_seconds(finding)
        if one.alert.state is State.FIRING and not over:
            return None
        return self._end(key, {"resolution": _FINE_AGAIN, **one.context, **finding.annotations}, now)

    def _end(self, key: str, annotations: dict[str, str], now: float) -> Alert | None:
        """A pending alert ends without a word: nobody was told of it."""
        one = self._open.pop(key)
        self._changed[key] = None
        if one.alert.state is State.PENDING:
            return None
        self._remember(key, _Past(now, one.refired), now)
        return replace(one.alert, state=State.RESOLVED, annotations=annotations, ends_at=now)

    def _remember(self, key: str, past: _Past, now: float) -> None:
        self._past = {
            old: one for old, one in self._past.items() if 0 <= now - one.resolved_at <= _FLAP_WINDOW
        }
        self._past[key] = past
