"""From what the drift detectors say to what the alarm is told."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Final

from policies.drift import Kind, Signal, Stratum
from policies.drift import Verdict as Said
from policies.drift.losing import STEPS, Arms
from specd.alerts.events import utc
from specd.alerts.finding import Finding, Pair, Verdict

SOURCE: Final = "drift"


@dataclass(frozen=True, slots=True)
class About:
    """Whose drafts signals are about."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """That tell them from those of others."""
    unit: str = "requests"
    """What is counted as one piece of evidence."""


OWN: Final = About()
"""The daemon's own."""

_NAMES: Final = {
    Kind.STEP: "SpecdAcceptanceDrift",
    Kind.DECAY: "SpecdAcceptanceDrift",
    Kind.CANARY: "SpecdAcceptanceDrift",
    Kind.COLLAPSE: "SpecdAcceptanceCollapse",
    Kind.LOOP: "SpecdAcceptanceLoop",
    Kind.LOSING: "SpecdSpeculationLosing",
}
_VERDICTS: Final = {
    Said.BREACHED: Verdict.BREACHED,
    Said.FINE: Verdict.FINE,
    Said.NO_EVIDENCE: Verdict.NO_EVIDENCE,
}
_BACK: Final = {
    Kind.STEP: "acceptance is back at its baseline",
    Kind.DECAY: "acceptance is back at its baseline",
    Kind.COLLAPSE: "acceptance is no longer collapsed",
    Kind.LOOP: "acceptance is no longer suspiciously high",
}
_TWO_SIDED: Final = 1.96
_HOW: Final = {Kind.STEP: "fell at once", Kind.DECAY: "went down little by little"}


def findings(signals: Iterable[Signal], severity: str, about: About = OWN) -> list[Finding]:
    """One for each signal."""
    return [_finding(signal, severity, about) for signal in signals]


def losses(
    arms: Iterable[Arms], pair: Pair, severity: str, *, now: float, stale_seconds: float
) -> list[Finding]:
    """One for each number of running requests. stale_seconds: what was not seen for so long says nothing."""
    return [_loss(one, one.verdict(now, stale_seconds), pair, severity) for one in arms]


def tells_of(alert_source: str, labels: Mapping[str, str], stratum: Stratum) -> bool:
    """Whether an alert is one of a stratum that has left its baseline."""
    kinds = {Kind.STEP.value, Kind.DECAY.value, Kind.LOOP.value}
    return (
        alert_source == SOURCE
        and labels.get("kind") in kinds
        and {name: labels.get(name) for name in _of_stratum(stratum)} == _of_stratum(stratum)
    )


def is_loss(labels: Mapping[str, str]) -> bool:
    """Whether an alert is one of `losses`."""
    return labels.get("kind") == Kind.LOSING.value


def _of_stratum(stratum: Stratum) -> dict[str, str | None]:
    return {
        "class": stratum.traffic_class,
        "temperature": stratum.temperature,
        "proposer": stratum.proposer,
        "evidence": "chances" if stratum.by_chance else None,
    }


def _loss(arms: Arms, said: Said, pair: Pair, severity: str) -> Finding:
    labels = {
        "alertname": _NAMES[Kind.LOSING],
        "kind": Kind.LOSING.value,
        "running": arms.running,
        "severity": severity,
        "target_revision": pair.target_revision,
        "draft_revision": pair.draft_revision,
    }
    who = f"with {arms.running} running"
    rates = f"{arms.drafting:.0f} tokens/s with drafts, {arms.plain:.0f} without"
    lost = said is Said.BREACHED
    return Finding(
        SOURCE,
        labels,
        _VERDICTS[said],
        {
            "summary": f"Speculation {'loses' if lost else 'is worth it'} {who}: {rates}",
            "description": f"Of the last {STEPS} steps of each kind {who} (target {pair.target_revision}, draft"
            f" {pair.draft_revision}). Steps that read prompts are left out.",
            "resolution": "steps with drafts are no longer slower than those without, or nobody drafts there any more",
        },
    )


def _finding(signal: Signal, severity: str, about: About) -> Finding:
    breached = signal.verdict is Said.BREACHED
    return Finding(
        SOURCE,
        {**_labels(signal, severity), **about.labels},
        _VERDICTS[signal.verdict],
        _breached(signal, about.unit) if breached else _fine(signal, about.unit),
        since=signal.since if breached else None,
    )


def _labels(signal: Signal, severity: str) -> dict[str, str]:
    return {
        "alertname": _NAMES[signal.kind],
        "kind": signal.kind.value,
        **{name: value for name, value in _of_stratum(signal.stratum).items() if value is not None},
        "severity": severity,
        "target_revision": signal.target_revision,
        "draft_revision": signal.draft_revision,
    }


def _who(signal: Signal) -> str:
    stratum = signal.stratum
    return f"class {stratum.traffic_class} ({stratum.temperature} temperature), drafted by {stratum.proposer}"


def _breached(signal: Signal, unit: str) -> dict[str, str]:
    who, pair = _who(signal), f"target {signal.target_revision}, draft {signal.draft_revision}"
    changed = not isnan(signal.after)
    since = "" if signal.since is None else f" since about {utc(signal.since)}"
    evidence = _change(signal, unit) if changed else _level(signal, unit)
    match signal.kind:
        case Kind.COLLAPSE:
            before = f" after {signal.before:.2f}{since}" if changed else ""
            return {
                "summary": f"Acceptance of {who}, has collapsed: it is {signal.now:.2f}{before}",
                "description": f"{evidence} ({pair}).",
            }
        case Kind.LOOP:
            before = f" after {signal.before:.2f}{since}"
            return {
                "summary": f"Acceptance of {who}, is suspiciously high: {signal.now:.2f}{before}",
                "description": (
                    f"{evidence} ({pair}). Texts that repeat themselves are easy to guess: read some."
                ),
            }
        case _:
            how = f"{_HOW[signal.kind]} from {signal.before:.2f} to {signal.after:.2f}{since}"
            return {
                "summary": f"Acceptance of {who}, {how}",
                "description": f"{evidence} ({pair}; evidence {signal.score:.1f} where 1 is enough).",
            }


def _change(signal: Signal, unit: str) -> str:
    """From where to where, with the interval."""
    return (
        f"At draft position {signal.position}, {signal.requests_after} {unit} were accepted at {signal.after:.3f}, the"
        f" {signal.requests_before} before them at {signal.before:.3f}: a change of"
        f" {signal.after - signal.before:+.3f}, 95 % interval {signal.low:+.3f} to {signal.high:+.3f}. Lately it is"
        f" {signal.now:.3f}"
    )


def _level(signal: Signal, unit: str) -> str:
    """Where no change was seen, as of what has been so from the first."""
    width = _TWO_SIDED * signal.now_error
    return (
        f"Of the first drafted tokens of the last {unit} {signal.now:.1%} were accepted, 95 % interval"
        f" {max(signal.now - width, 0):.1%} to {min(signal.now + width, 1):.1%}. The {signal.requests_before} {unit} of"
        f" the baseline were accepted at {signal.before:.3f}"
    )


def _fine(signal: Signal, unit: str) -> dict[str, str]:
    who = _who(signal)
    return {
        "summary": f"Acceptance of {who}, is {signal.now:.2f}",
        "description": f"Its baseline is {signal.before:.3f}, of {signal.requests_before} {unit}.",
        "resolution": _BACK.get(signal.kind, "it is fine again"),
    }
