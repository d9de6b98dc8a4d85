"""What happened lately that may be why acceptance changed."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

EventKind = Literal["start", "target_update", "draft_update", "config_reload", "engine_restart"]

_REMEMBERED: Final = 64
_HORIZON: Final = 3600.0
_SLACK: Final = 60.0
_WORDS: Final[dict[EventKind, str]] = {
    "start": "start of the daemon",
    "target_update": "target update",
    "draft_update": "draft update",
    "config_reload": "config reload",
    "engine_restart": "restart of the engine",
}


@dataclass(frozen=True, slots=True)
class Event:
    """Something that somebody did, or that happened to the engine."""

    kind: EventKind
    text: str
    """A clause: "t1 to t2"."""
    at: float
    """Unix seconds."""


def utc(unix_time: float) -> str:
    """For sentences: to the second."""
    return datetime.fromtimestamp(unix_time, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


class Events:
    """The last events, oldest first."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=_REMEMBERED)
        self._fresh: list[Event] = []

    def restore(self, events: Iterable[Event]) -> None:
        """Go on with these."""
        self._events.extend(events)

    def note(self, kind: EventKind, text: str, now: float) -> None:
        """It happened just now."""
        event = Event(kind, text, now)
        self._events.append(event)
        self._fresh.append(event)

    def fresh(self) -> tuple[Event, ...]:
        """Those that were noted since the last call."""
        fresh, self._fresh = tuple(self._fresh), []
        return fresh

    def all(self) -> list[Event]:
        """Those that are remembered."""
        return list(self._events)

    def last(self, kind: EventKind) -> Event | None:
        """The newest of its kind."""
        return next((event for event in reversed(self._events) if event.kind == kind), None)

    def suspect(self, since: float) -> str:
        """A sentence on what may have caused a change that began at `since`, in Unix seconds.

        That is the last event of the hour before. When a change began is known only roughly, so one of the minute
        after counts too.
        """
        near = [event for event in self._events if -_SLACK <= since - event.at <= _HORIZON]
        if not near:
            return f"no event in the hour before {utc(since)}"
        event = max(reversed(near), key=lambda one: one.at)
        return f"{_WORDS[event.kind]} at {utc(event.at)} ({event.text})"
