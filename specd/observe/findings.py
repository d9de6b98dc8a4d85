"""From what is known of an engine to what the alarm is told."""

from collections.abc import Mapping
from typing import Final

from policies.canary import CanaryVerdict
from specd.alerts.finding import OBSERVED, Finding, Verdict
from specd.alerts.signals import About
from specd.config.reload import redacted
from specd.observe.observer import Observer
from specd.observe.target import Same

SOURCE: Final = "observe"

_VERDICTS: Final[Mapping[Same, Verdict]] = {
    Same.YES: Verdict.FINE,
    Same.NO: Verdict.BREACHED,
    Same.UNKNOWN: Verdict.NO_EVIDENCE,
}
_OF_CANARY: Final[Mapping[CanaryVerdict, Verdict]] = {
    CanaryVerdict.FINE: Verdict.FINE,
    CanaryVerdict.BAD: Verdict.BREACHED,
    CanaryVerdict.NO_EVIDENCE: Verdict.NO_EVIDENCE,
}


def about(observer: Observer) -> About:
    """Whose signals its drift detectors make."""
    return About({OBSERVED: observer.section.name}, unit="reports")


def findings(observer: Observer, now: float) -> list[Finding]:
    """At every look of the alarm."""
    return [_down(observer), _changed(observer), *observer.drift.findings(now, about(observer))]


def canary(observer: Observer) -> Finding | None:
    """What the last canary said of its drafts, if that could be compared."""
    found = observer.target.drafts
    if found is None:
        return None
    target, draft = observer.pair
    labels = {
        **_labels(observer, "SpecdAcceptanceDrift"),
        "kind": "canary",
        "class": "canary",
        "target_revision": target,
        "draft_revision": draft,
    }
    whose = f"at {observer.section.name}"
    texts = {"summary": found.summary(whose), "description": f"{found.description(whose)}."}
    return Finding("canary", labels, _OF_CANARY[found.verdict], texts)


def _labels(observer: Observer, name: str) -> dict[str, str]:
    return {"alertname": name, "severity": observer.section.severity, OBSERVED: observer.section.name}


def _down(observer: Observer) -> Finding:
    section = observer.section
    down = observer.fault is not None
    summary = f"{section.name} cannot be observed" if down else f"{section.name} is observed"
    return Finding(
        SOURCE,
        _labels(observer, "SpecdObservedDown"),
        Verdict.BREACHED if down and observer.down_for >= section.down_seconds else _up(down=down),
        {
            "summary": summary,
            "description": f"{observer.fault}." if down else f"{redacted(section.url)} answers.",
            "resolution": "it answers again",
        },
    )


def _up(*, down: bool) -> Verdict:
    return Verdict.BETWEEN if down else Verdict.FINE


def _changed(observer: Observer) -> Finding:
    name, target = observer.section.name, observer.target
    same = target.same
    summary = (
        f"Another target answers at {name}" if same is Same.NO else f"The known target answers at {name}"
    )
    return Finding(
        SOURCE,
        _labels(observer, "SpecdTargetChanged"),
        _VERDICTS[same],
        {
            "summary": f"{summary}: {target.revision}",
            "description": f"{evidence(observer)}. If it is meant to: `specd observe accept {name}`.",
            "resolution": "the known target answers, or the one that does was accepted",
        },
    )


def evidence(observer: Observer) -> str:
    """A sentence on why the target is held for the one that is known, or for another."""
    target = observer.target
    said = "; ".join(target.differences) or "it says the same of itself as before"
    if target.texts is None:
        return f"{said}; its answers were not compared yet"
    texts = target.texts
    rarely = f"which is chance once in {1 / max(texts.chance, 1e-300):.0e} times"
    why = rarely if texts.changed else "as chance would have it"
    return f"{said}; {texts.differed} of {texts.compared} answers to the canary are not the known ones, {why}"
