"""PagerDuty's Events API v2: an incident per fingerprint, and target updates as change events."""

from typing import Any, Final

from specd.alerts.events import Event
from specd.alerts.lifecycle import Alert, State
from specd.alerts.receivers.base import Post, Target, alerts_of, json_post, rfc3339
from specd.alerts.store import Message

ROOT: Final = "https://events.pagerduty.com"
"""Where events go unless `url` says otherwise."""

_SEVERITIES: Final = frozenset({"critical", "error", "warning", "info"})
_LONGEST_SUMMARY: Final = 1024


def post(target: Target, message: Message, _now: float) -> Post:
    """The attempt, the same at each moment."""
    root = target.url.rstrip("/")
    if message.content.event is not None:
        return json_post(f"{root}/v2/change/enqueue", _change(target, message.content.event))
    (alert,) = alerts_of(message)
    return json_post(f"{root}/v2/enqueue", _event(target, alert))


def _event(target: Target, alert: Alert) -> dict[str, Any]:
    key = {"routing_key": target.token, "dedup_key": alert.fingerprint}
    if alert.state is State.RESOLVED:
        return {**key, "event_action": "resolve"}
    severity = alert.labels.get("severity", "")
    payload = {
        "summary": alert.annotations.get("summary", alert.name)[:_LONGEST_SUMMARY],
        "source": alert.labels.get("target_revision", "specd"),
        "severity": severity if severity in _SEVERITIES else "warning",
        "timestamp": rfc3339(alert.starts_at),
        "component": alert.labels.get("class", "engine"),
        "class": alert.name,
        "custom_details": {**alert.labels, **alert.annotations},
    }
    runbook = alert.annotations.get("runbook_url", "")
    links = [{"href": runbook, "text": "Runbook"}] if runbook.startswith("http") else []
    return {**key, "event_action": "trigger", "client": "specd", "payload": payload, "links": links}


def _change(target: Target, event: Event) -> dict[str, Any]:
    payload = {
        "summary": f"specd: {event.kind.replace('_', ' ')}: {event.text}"[:_LONGEST_SUMMARY],
        "timestamp": rfc3339(event.at),
        "source": "specd",
    }
    return {"routing_key": target.token, "payload": payload}
