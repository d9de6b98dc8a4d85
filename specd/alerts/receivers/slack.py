"""Slack's incoming webhooks: one message per group, which nothing can change afterwards."""

from typing import Any, Final

from specd.alerts.lifecycle import Alert, State
from specd.alerts.receivers.base import Post, Target, alerts_of, common, json_post
from specd.alerts.store import Message

_COLOURS: Final = {"critical": "#a30200", "warning": "#daa038"}
_OTHER, _OVER = "#439fe0", "#2eb886"
_SHOWN: Final = 20
_LONGEST: Final = 2900


def post(target: Target, message: Message, _now: float) -> Post:
    """The attempt, the same at each moment."""
    alerts = alerts_of(message)
    body: dict[str, Any] = {
        "text": _headline(alerts),
        "attachments": [_attachment(alert) for alert in alerts[:_SHOWN]],
    }
    if len(alerts) > _SHOWN:
        body["attachments"].append({"text": f"… and {len(alerts) - _SHOWN} more", "color": _OTHER})
    return json_post(target.url, body)


def _headline(alerts: tuple[Alert, ...]) -> str:
    firing = sum(alert.state is State.FIRING for alert in alerts)
    state = f"FIRING:{firing}" if firing else "RESOLVED"
    labels = common([alert.labels for alert in alerts])
    about = [labels[name] for name in ("alertname", "class", "target_revision") if name in labels]
    return escaped(f"[{state}] {' '.join(about) or 'several alerts'}")


def _attachment(alert: Alert) -> dict[str, Any]:
    texts = alert.annotations
    over = alert.state is State.RESOLVED
    why = [texts[name] for name in ("resolution",) if over and name in texts]
    why += [f"Suspected cause: {texts['suspected_cause']}" for _ in (0,) if "suspected_cause" in texts]
    runbook = texts.get("runbook_url", "")
    linked = runbook.startswith("http")
    why += [f"Runbook: {runbook}" for _ in (0,) if runbook and not linked]
    found: dict[str, Any] = {
        "color": _OVER if over else _COLOURS.get(alert.labels.get("severity", ""), _OTHER),
        "title": escaped(texts.get("summary", alert.name)),
        "text": escaped("\n".join([texts.get("description", ""), *why]).strip())[:_LONGEST],
        "footer": escaped(", ".join(f"{name}={value}" for name, value in sorted(alert.labels.items()))),
        "ts": int(alert.starts_at if alert.ends_at is None else alert.ends_at),
    }
    return found | ({"title_link": runbook} if linked else {})


def escaped(text: str) -> str:
    """The three characters that mean something to Slack."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
