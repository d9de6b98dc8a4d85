"""What is published of an alert over MQTT."""

from typing import Final

import msgspec

from specd.alerts.receivers.base import alerts_of, rfc3339, status
from specd.alerts.store import Message

_encode: Final = msgspec.json.Encoder().encode


def payload(message: Message) -> bytes:
    """The same at every attempt; `id` tells a repetition from news."""
    (alert,) = alerts_of(message)
    return _encode(
        {
            "id": message.id,
            "status": status(alert),
            "labels": alert.labels,
            "annotations": alert.annotations,
            "startsAt": rfc3339(alert.starts_at),
            "endsAt": None if alert.ends_at is None else rfc3339(alert.ends_at),
            "fingerprint": alert.fingerprint,
        }
    )
