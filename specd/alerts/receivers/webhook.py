"""Alertmanager's webhook body, version 4, signed by the Standard Webhooks scheme."""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from specd.alerts.lifecycle import Alert, State
from specd.alerts.receivers.base import Post, Target, alerts_of, common, rfc3339, status
from specd.alerts.receivers.secrets import SecretError, secret_text
from specd.alerts.store import Message
from specd.config.alerts import ReceiverSection

_PREFIX: Final = "whsec_"
_SHORTEST_KEY: Final = 24
_OPEN_END: Final = "0001-01-01T00:00:00Z"


def post(target: Target, message: Message, now: float) -> Post:
    """The attempt of this moment."""
    content = body(target.section, message)
    return Post(target.url, content, headers(message.id, now, content, target.keys))


def body(section: ReceiverSection, message: Message) -> bytes:
    """The same at every attempt: all alerts of the message, the status "firing" while one of them does."""
    alerts = alerts_of(message)
    labels = common([alert.labels for alert in alerts])
    group = (
        {name: labels[name] for name in section.group_by if name in labels} if section.group_by else labels
    )
    content = {
        "version": "4",
        "groupKey": f"{{}}:{{{_matchers(group)}}}",
        "truncatedAlerts": 0,
        "status": "firing" if any(alert.state is State.FIRING for alert in alerts) else "resolved",
        "receiver": section.name,
        "groupLabels": group,
        "commonLabels": labels,
        "commonAnnotations": common([alert.annotations for alert in alerts]),
        "externalURL": "",
        "alerts": [_alert(alert) for alert in alerts],
    }
    return json.dumps(content, ensure_ascii=False).encode()


def _matchers(labels: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in sorted(labels.items())
    )


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "status": status(alert),
        "labels": alert.labels,
        "annotations": alert.annotations,
        "startsAt": rfc3339(alert.starts_at),
        "endsAt": _OPEN_END if alert.ends_at is None else rfc3339(alert.ends_at),
        "generatorURL": "",
        "fingerprint": alert.fingerprint,
    }


def headers(message_id: str, unix_time: float, content: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """The headers of one attempt: the id stays over retries, the time is the attempt's.

    One signature per key, so that a receiver may hold the old or the new secret while it is being replaced;
    without keys nothing is signed.
    """
    timestamp = str(int(unix_time))
    found = {"content-type": "application/json", "webhook-id": message_id, "webhook-timestamp": timestamp}
    if keys:
        signed = f"{message_id}.{timestamp}.".encode() + content
        found["webhook-signature"] = " ".join(_signature(key, signed) for key in keys)
    return found


def _signature(key: bytes, signed: bytes) -> str:
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def read_keys(path: Path | None) -> tuple[bytes, ...]:
    """The signing keys in a secret file, one `whsec_…` a line. Raises `SecretError`."""
    if path is None:
        return ()
    lines = secret_text(path).splitlines()
    keys = tuple(
        _key(line.strip(), f"line {number} of the secret file {path}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    )
    if not keys:
        raise SecretError(
            f"the secret file {path} is empty: put {_PREFIX} followed by a key in base64 into it"
        )
    return keys


def _key(text: str, where: str) -> bytes:
    if not text.startswith(_PREFIX):
        raise SecretError(f"{where} does not begin with {_PREFIX}")
    encoded = text.removeprefix(_PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise SecretError(f"{where} is not base64 after {_PREFIX}") from None
    if len(key) < _SHORTEST_KEY:
        raise SecretError(
            f"{where} is a key of {len(key)} bytes: Standard Webhooks asks for at least {_SHORTEST_KEY}"
        )
    return key
