"""How much may wait in the outbox, and what goes where there is more."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specd.alerts.lifecycle import Alert, State


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of all receivers' messages together."""

    messages: int = 10_000
    bytes: int = 32 << 20
    """Of their contents."""

    def excess(self, messages: int, size: int) -> bool:
        """Whether there is more."""
        return messages > self.messages or size > self.bytes


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that nobody is sending."""

    id: str
    receiver: str
    alerts: Sequence[Alert]
    bytes: int


def to_drop(waiting: Sequence[Waiting], messages: int, size: int, bounds: Bounds) -> list[Waiting]:
    """Which of them go, so that a tenth of the bounds is free again. waiting: oldest first. messages, size: all that
    there is.

    First those that tell of nothing but what is over and was not heard of yet, since nobody misses them; then the
    oldest.
    """
    over = _over(waiting)
    dropped = []
    for one in sorted(waiting, key=lambda each: each.id not in over):
        if messages <= 0.9 * bounds.messages and size <= 0.9 * bounds.bytes:
            break
        dropped.append(one)
        messages, size = messages - 1, size - one.bytes
    return dropped


def _over(waiting: Iterable[Waiting]) -> set[str]:
    """Messages all of whose alerts begin and end among those that wait."""
    messages = list(waiting)
    states: dict[tuple[str, str], list[State]] = defaultdict(list)
    for one in messages:
        for alert in one.alerts:
            states[one.receiver, alert.fingerprint].append(alert.state)
    past = {key for key, said in states.items() if said[0] is State.FIRING and said[-1] is State.RESOLVED}
    return {
        one.id
        for one in messages
        if one.alerts and all((one.receiver, alert.fingerprint) in past for alert in one.alerts)
    }
