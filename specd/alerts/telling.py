"""Who is to be told of what. Pure: alerts, receivers, what they know and what is muted in; notices out.

told    when a receiver was last told that an alert fires. A receiver that was told of one is told of its end, whatever
        is muted by then, and nobody else is: so no incident stays open for ever, and none is closed that never was.
muted   of an alert that fires nobody is told while there is a reason: a silence, an update that is given time, or a
        worse alert of the same cause. When the reason goes and the alert still fires, they are told.
"""

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from specd.alerts.events import Event, Events, utc
from specd.alerts.lifecycle import Alert, OpenAlert, State
from specd.alerts.rules import SOURCE as FLOOR
from specd.alerts.silences import Silences

Told = MutableMapping[tuple[str, str], float]
"""By receiver and fingerprint: Unix seconds of the last notice that it fires."""

TEST: Final = "test"
"""Source of alerts that try the way to the receivers: nothing mutes them."""

_CAUSE: Final = ("class", "proposer", "target_revision", "draft_revision")
_COLLAPSE: Final = "SpecdAcceptanceCollapse"


@dataclass(frozen=True, slots=True)
class Listener:
    """What telling needs to know of a receiver."""

    name: str
    repeat_seconds: float
    """An alert that still fires is told again after so long; 0 never."""
    send_resolved: bool


@dataclass(frozen=True, slots=True)
class Notice:
    """A receiver is to be told of this alert as it stands."""

    receiver: str
    alert: Alert
    again: bool = False
    """It was told before."""


def firing_notices(
    alerts: Iterable[OpenAlert],
    listeners: Iterable[Listener],
    told: Told,
    mute: Callable[[OpenAlert], str | None],
    now: float,
) -> list[Notice]:
    """Of those that fire: to whom it is news, and whom to remind. Notes it in `told`."""
    firing = [one for one in alerts if one.alert.state is State.FIRING and mute(one) is None]
    found = []
    for listener in listeners:
        for one in firing:
            key = (listener.name, one.alert.fingerprint)
            last = told.get(key)
            if last is None or _repeats(listener, last, now):
                told[key] = now
                found.append(Notice(listener.name, one.alert, again=last is not None))
    return found


def resolved_notices(ended: Iterable[Alert], listeners: Iterable[Listener], told: Told) -> list[Notice]:
    """Of those that are over: whoever was told of it, and wants to know. Takes them out of `told`."""
    listening = list(listeners)
    return [
        Notice(listener.name, alert)
        for alert in ended
        for listener in listening
        if told.pop((listener.name, alert.fingerprint), None) is not None and listener.send_resolved
    ]


def _repeats(listener: Listener, last: float, now: float) -> bool:
    """A clock that was set back would otherwise keep a reminder waiting for as long."""
    return listener.repeat_seconds > 0 and not 0 <= now - last < listener.repeat_seconds


@dataclass(slots=True)
class Muting:
    """Why nobody is told of an alert, for now."""

    silences: Silences
    events: Events
    open: Callable[[], Sequence[OpenAlert]]
    """All of them."""
    grace_seconds: float = 0.0
    """After an announced target update, the floors of acceptance are given so long to be reached again."""

    def why(self, one: OpenAlert, now: float) -> str | None:
        """A clause for people, None when it is told."""
        if one.alert.source == TEST:
            return None
        silence = self.silences.covering(one.alert.labels, now)
        if silence is not None:
            return f"silenced until {utc(silence.ends_at)} by {silence.id}"
        update = self._update_behind(one)
        if update is not None and now < update.at + self.grace_seconds:
            return f"inhibited until {utc(update.at + self.grace_seconds)}: target update at {utc(update.at)}"
        worse = self._worse(one, now)
        return None if worse is None else f"inhibited by {worse.name} {worse.fingerprint}, of the same cause"

    def _worse(self, one: OpenAlert, now: float) -> Alert | None:
        """An alert that fires, is told, and says what this one says and more: one cause, one page."""
        rank = _rank(one.alert)
        if rank == 0:
            return None
        return next(
            (
                other.alert
                for other in self.open()
                if other.alert.name == _COLLAPSE
                and _rank(other.alert) < rank
                and other.alert.state is State.FIRING
                and _cause(other.alert) == _cause(one.alert)
                and self.why(other, now) is None
            ),
            None,
        )

    def not_recovered(self, one: OpenAlert) -> Alert:
        """The alert; where it outlived the time that an update was given, its texts say so."""
        update = self._update_behind(one)
        if update is None or self.grace_seconds == 0:
            return one.alert
        texts = dict(one.alert.annotations)
        texts["summary"] = f"Not recovered since the target update at {utc(update.at)}: {texts['summary']}"
        return replace(one.alert, annotations=texts)

    def _update_behind(self, one: OpenAlert) -> Event | None:
        """The update that the alert began under, if it is one that a grace period is for."""
        update = self.events.last("target_update")
        if one.alert.source != FLOOR or update is None:
            return None
        return update if 0 <= one.since - update.at <= self.grace_seconds else None


def _rank(alert: Alert) -> int:
    """Of alerts of one cause the lowest is told: the floor that an operator has set, a collapse, a drift."""
    if alert.name == _COLLAPSE:
        return 0 if alert.source == FLOOR else 1
    return 2 if alert.name == "SpecdAcceptanceDrift" else 0


def _cause(alert: Alert) -> tuple[str | None, ...]:
    return tuple(alert.labels.get(name) for name in _CAUSE)
