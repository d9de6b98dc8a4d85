"""What the kinds of receivers have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from specd.alerts.lifecycle import Alert, State
from specd.alerts.store import Message
from specd.config.alerts import ReceiverSection

_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Target:
    """A receiver with what its files hold."""

    section: ReceiverSection
    url: str
    keys: tuple[bytes, ...] = ()
    """Signing keys; or a token, or a routing key, as the one element."""

    @property
    def token(self) -> str:
        """The one key, as text; empty where there is none."""
        return self.keys[0].decode() if self.keys else ""


@dataclass(frozen=True, slots=True)
class Post:
    """One attempt over HTTP."""

    url: str
    content: bytes
    headers: Mapping[str, str]


class Publisher(Protocol):
    """The way to an MQTT broker."""

    async def publish_alert(self, payload: bytes) -> None:
        """Returns once the broker has it. Raises `NotPublishedError` when nobody knows whether it has."""


def json_post(url: str, body: Any, headers: Mapping[str, str] | None = None) -> Post:
    """A POST of this body as JSON."""
    return Post(url, _encode(body), {"content-type": "application/json", **(headers or {})})


def rfc3339(unix_time: float) -> str:
    """In UTC, to the millisecond."""
    return datetime.fromtimestamp(unix_time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def status(alert: Alert) -> str:
    """As Alertmanager calls it: a receiver never hears of pending ones."""
    return "resolved" if alert.state is State.RESOLVED else "firing"


def common(tables: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What all of them say alike."""
    first, *others = tables
    return {name: value for name, value in first.items() if all(one.get(name) == value for one in others)}


def alerts_of(message: Message) -> tuple[Alert, ...]:
    """Its alerts, of which there is at least one: events go to kinds that take them."""
    assert message.content.alerts, "a message without alerts went to a receiver that wants no events"
    return message.content.alerts
