"""The one place where an alert is decided.

             breached           breached for `for_seconds`           fine for `keep_seconds`
  (no alert) ────────▶ PENDING ────────────────────────────▶ FIRING ─────────────────────────▶ RESOLVED
      ▲                   │ not breached
      └───────────────────┘

One open alert per fingerprint. No evidence changes nothing, and such time counts towards neither span. RESOLVED is
said once and the alert is gone.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from specd.alerts.finding import Finding, Verdict

_FINE_AGAIN: Final = "it is fine again"


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
class _Span:
    """Seconds for which something was seen to hold, without a gap in the evidence."""

    seconds: float = 0.0
    _seen_at: float | None = None

    def hold(self, now: float) -> None:
        """It holds now, and did all the time since the last look if it did then."""
        if self._seen_at is not None:
            self.seconds += max(0.0, now - self._seen_at)
        self._seen_at = now

    def pause(self) -> None:
        """Nothing is known: what was counted stays, the time until the next look is not."""
        self._seen_at = None


@dataclass(slots=True)
class _Open:
    alert: Alert
    context: dict[str, str]
    """What was known when it began: it is not asked again."""
    breached: _Span = field(default_factory=_Span)
    fine: _Span = field(default_factory=_Span)

    def tell(self, annotations: dict[str, str]) -> Alert:
        """The alert with the texts of now."""
        self.alert = replace(self.alert, annotations={**self.context, **annotations})
        return self.alert


class Lifecycle:
    """The open alerts. Every method returns the alerts that changed state, as they stand now."""

    def __init__(self, context: Callable[[Finding, float], dict[str, str]] | None = None) -> None:
        """`context`: annotations that an alert keeps from its first breach on, such as the suspected cause."""
        self._context = context or (lambda _finding, _now: {})
        self._open: dict[str, _Open] = {}

    def open(self) -> list[Alert]:
        """Pending and firing, oldest first."""
        return [one.alert for one in self._open.values()]

    def step(self, findings: Iterable[Finding], now: float) -> list[Alert]:
        """Take in what is said now."""
        changes = (self._apply(finding, now) for finding in findings)
        return [alert for alert in changes if alert is not None]

    def end(self, why: Callable[[Alert], str | None], now: float) -> list[Alert]:
        """End every open alert for which `why` has a clause, whatever the evidence."""
        ended = [
            (key, one, reason) for key, one in self._open.items() if (reason := why(one.alert)) is not None
        ]
        changes = (
            self._end(key, {**one.alert.annotations, "resolution": reason}, now) for key, one, reason in ended
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
            begun = Alert(key, finding.source, finding.labels, {}, State.PENDING, starts_at=now)
            one = self._open[key] = _Open(begun, self._context(finding, now))
        one.breached.hold(now)
        one.fine = _Span()
        alert = one.tell(finding.annotations)
        if alert.state is State.PENDING and one.breached.seconds >= finding.for_seconds:
            one.alert = alert = replace(alert, state=State.FIRING, starts_at=now)
        return alert if alert.state is not before else None

    def _not_breached(self, key: str, one: _Open, finding: Finding, now: float) -> Alert | None:
        one.breached.pause()
        if finding.verdict is Verdict.NO_EVIDENCE:
            one.fine.pause()
            return None
        if finding.verdict is Verdict.FINE:
            one.fine.hold(now)
        else:
            one.fine = _Span()
        over = finding.verdict is Verdict.FINE and one.fine.seconds >= finding.keep_seconds
        if one.alert.state is State.FIRING and not over:
            return None
        return self._end(key, {"resolution": _FINE_AGAIN, **one.context, **finding.annotations}, now)

    def _end(self, key: str, annotations: dict[str, str], now: float) -> Alert | None:
        """A pending alert ends without a word: nobody was told of it."""
        alert = self._open.pop(key).alert
        if alert.state is State.PENDING:
            return None
        return replace(alert, state=State.RESOLVED, annotations=annotations, ends_at=now)
