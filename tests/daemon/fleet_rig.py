"""Nodes of a fleet that a test makes up: what they retain at a broker."""

import json
import time
from typing import Any

from specd.fleet.fleet import Fleet
from tests.daemon.mosquitto import Spy

NOW = 1_764_430_000.0

STATE = {
    "time": NOW,
    "state_seconds": 300.0,
    "version": "0.1.0",
    "ready": True,
    "unready_because": None,
    "load": "full",
    "running": 3,
    "waiting": 0,
    "tokens_per_second": 181.4,
    "k": 3.2,
    "acceptance": {"chat": 0.61, "code": 0.74},
    "doing": None,
    "refused": None,
    "alerts": {"pending": 0, "firing": 0},
    "firing": [],
    "config": "5be0b4a9c1d2",
}
ALERT = {
    "name": "SpecdAcceptanceCollapse",
    "fingerprint": "63113144d145a82a",
    "startsAt": "2026-01-05T09:30:00.000Z",
    "class": "code",
    "summary": "Acceptance of code is below its floor",
}


def target(revision: str = "t1", by: str | None = None, at: float = NOW, **more: Any) -> dict[str, Any]:
    """Of a node that serves this revision since its start, or since a change."""
    changed = None if by is None else {"unix_time": at, "by": by, "previous": "t0"}
    pair = {"name": "demo", "target_revision": revision, "draft_revision": "d1", "quantization": "none"}
    return {**pair, "changed": changed, **more}


class Made:
    """A fleet that is told what a test says, without a broker."""

    def __init__(self) -> None:
        self.now = NOW
        self.fleet = Fleet(lambda: self.now)
        self.fleet.begin("specd")

    def say(self, name: str, kind: str, content: object, *, old: bool = False) -> None:
        payload = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.fleet.take(f"specd/{name}/{kind}", payload, old=old)

    def node(self, name: str, serves: dict[str, Any], *, online: bool = True, **state: Any) -> None:
        self.say(name, "availability", b"online" if online else b"offline")
        self.say(name, "state", STATE | state)
        self.say(name, "target", serves)


async def publish(spy: Spy, name: str, serves: dict[str, Any], *, online: bool = True, **state: Any) -> None:
    """The same at a broker, retained."""
    await spy.say(f"specd/{name}/availability", b"online" if online else b"offline", retain=True)
    await spy.say(f"specd/{name}/state", STATE | {"time": time.time()} | state, retain=True)
    await spy.say(f"specd/{name}/target", serves, retain=True)
