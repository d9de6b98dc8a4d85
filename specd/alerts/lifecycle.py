"""The one place where an alert is decided.

             breached           breached for `for_seconds`            fine
  (no alert) ────────▶ PENDING ────────────────────────────▶ FIRING ──────▶ RESOLVED
      ▲                   │ fine
      └───────────────────┘

One open alert per fingerprint. No evidence changes nothing, and such time does not count towards
`for_seconds`. RESOLVED is said once and the alert is gone.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from specd.alerts.rules import Finding, Verdict, annotations

BACK = "acceptance is no longer under the floor"


class State(StrEnum):
    """The values are those of `specd_alerts{state}`."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert as it stood at one moment. Times are Unix seconds."""

    fingerprint: str
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
class _Open:
    alert: Alert
    held: float = 0.0
    """Seconds for which the rule was seen breached without a gap in the evidence."""
    breached_at: float | None = None
    """The previous evaluation, if it said breached."""

    def breach(self, now: float) -> None:
        if self.breached_at is not None:
            self.held += max(0.0, now - self.breached_at)
        self.breached_at = now


class Lifecycle:
    """The open alerts. Every method returns the alerts that changed state, as they stand now."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    def open(self) -> list[Alert]:
        """Pending and firing, oldest first."""
        return [one.alert for one in self._open.values()]

    def step(self, findings: Iterable[Finding], now: float) -> list[Alert]:
        """Take in what the rules say now."""
        changes = (self._apply(finding, now) for finding in findings)
        return [alert for alert in changes if alert is not None]

    def end(self, why: Callable[[Alert], str | None], now: float) -> list[Alert]:
        """End every open alert for which `why` has a clause, whatever the evidence."""
        ended = [(alert, reason) for alert in self.open() if (reason := why(alert)) is not None]
        changes = (self._end(alert.fingerprint, alert.annotations, reason, now) for alert, reason in ended)
        return [alert for alert in changes if alert is not None]

    def _apply(self, finding: Finding, now: float) -> Alert | None:
        key = fingerprint(finding.labels)
        match finding.verdict:
            case Verdict.BREACHED:
                return self._breach(key, finding, now)
            case Verdict.FINE:
                return self._end(key, annotations(finding), BACK, now)
            case Verdict.NO_EVIDENCE:
                if key in self._open:
                    self._open[key].breached_at = None
                return None

    def _breach(self, key: str, finding: Finding, now: float) -> Alert | None:
        one = self._open.get(key)
        before = None if one is None else one.alert.state
        if one is None:
            one = self._open[key] = _Open(Alert(key, finding.labels, {}, State.PENDING, starts_at=now))
        one.breach(now)
        one.alert = replace(one.alert, annotations=annotations(finding))
        if one.alert.state is State.PENDING and one.held >= finding.rule.for_seconds:
            one.alert = replace(one.alert, state=State.FIRING, starts_at=now)
        return one.alert if one.alert.state is not before else None

    def _end(self, key: str, texts: dict[str, str], why: str, now: float) -> Alert | None:
        """A pending alert ends without a word: nobody was told of it."""
        one = self._open.pop(key, None)
        if one is None or one.alert.state is State.PENDING:
            return None
        texts = {**texts, "resolution": why}
        return replace(one.alert, state=State.RESOLVED, annotations=texts, ends_at=now)
