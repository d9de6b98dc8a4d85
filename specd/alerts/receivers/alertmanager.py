"""The v2 API of an Alertmanager, which has routes, silences and receivers of its own."""

from typing import Any, Final

from specd.alerts.lifecycle import Alert
from specd.alerts.receivers.base import Post, Target, alerts_of, json_post, rfc3339
from specd.alerts.store import Message

_LASTS: Final = 4
"""An alert is good for so many repeats: one that is lost does not resolve it, a daemon that is gone does."""


def post(target: Target, message: Message, now: float) -> Post:
    """The attempt of this moment."""
    lasts = now + _LASTS * target.section.repeats_after
    headers = {"authorization": f"Bearer {target.token}"} if target.token else {}
    alerts = [_alert(alert, lasts) for alert in alerts_of(message)]
    return json_post(f"{target.url.rstrip('/')}/api/v2/alerts", alerts, headers)


def _alert(alert: Alert, lasts: float) -> dict[str, Any]:
    return {
        "labels": alert.labels,
        "annotations": alert.annotations,
        "startsAt": rfc3339(alert.starts_at),
        "endsAt": rfc3339(lasts if alert.ends_at is None else alert.ends_at),
    }
