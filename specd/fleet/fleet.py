"""The nodes that publish below one prefix: what each said last, kept as it came and read when somebody looks.

A message costs next to nothing until then, however many come, and there is an end to how much is kept.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from specd.config.mqtt import FLEET
from specd.fleet.payloads import Kind, State, Target, Unreadable, clean, read

MOST_NODES: Final = 256
_MOST_BYTES: Final = 16 << 10
_LONGEST_NAME: Final = 64
_KINDS: Final = ("availability", "state", "target")
_TOO_LARGE: Final = f"it has more than {_MOST_BYTES} bytes"


@dataclass(frozen=True, slots=True)
class Node:
    """A daemon, as far as it has told of itself."""

    name: str
    online: bool | None
    """None where it has not said."""
    state: State | None
    target: Target | None
    told_at: float | None
    """Unix seconds of its state: by our clock where we heard it, else by the node's, and never later than now."""
    faults: tuple[str, ...]
    """Sentences about what it published and nobody can read."""


@dataclass(slots=True)
class _Said:
    """The last message of a topic."""

    payload: bytes = b""
    at: float = 0.0
    old: bool = False
    """It had been waiting for whoever comes."""


@dataclass(slots=True)
class _Kept:
    availability: str = ""
    state: _Said = field(default_factory=_Said)
    target: _Said = field(default_factory=_Said)
    read: tuple[_Said, _Said, str, Node] | None = None
    """What a node was made of when somebody looked last, and the node."""


class Fleet:
    """Fed by a connection to the broker."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """clock: gives Unix seconds."""
        self._clock = clock
        self.begin("")

    def begin(self, prefix: str) -> None:
        """Forget everybody, and listen below this prefix."""
        self.prefix = prefix
        self._kept: dict[str, _Kept] = {}
        self.crowded = False
        """There are nodes that are left out, since there are so many, or their names are so long."""

    @property
    def filters(self) -> tuple[str, ...]:
        """What to subscribe to."""
        return tuple(f"{self.prefix}/+/{kind}" for kind in _KINDS)

    def take(self, topic: str, payload: bytes, *, old: bool) -> None:
        """A message; of another topic it is passed over. old: it was retained before we came."""
        name, _, kind = topic.removeprefix(f"{self.prefix}/").partition("/")
        if not topic.startswith(f"{self.prefix}/") or kind not in _KINDS or name == FLEET:
            return
        if kind == "availability" and not payload:  # somebody has taken it out of the broker
            self._kept.pop(name, None)
            return
        if name not in self._kept and (len(self._kept) >= MOST_NODES or len(name) > _LONGEST_NAME):
            self.crowded = True
            return
        kept = self._kept.setdefault(name, _Kept())
        if kind == "availability":
            kept.availability = payload[:16].decode(errors="replace")
        else:
            setattr(kept, kind, _Said(payload[: _MOST_BYTES + 1], self._clock(), old))

    def nodes(self) -> list[Node]:
        """By name."""
        return [self._node(name, self._kept[name]) for name in sorted(self._kept)]

    def _node(self, name: str, kept: _Kept) -> Node:
        made_of = (kept.state, kept.target, kept.availability)
        if kept.read is None or kept.read[:3] != made_of:
            kept.read = (*made_of, _read(name, kept))
        return kept.read[3]


def _read(name: str, kept: _Kept) -> Node:
    state, target = _parsed(kept.state, State), _parsed(kept.target, Target)
    found = state if isinstance(state, State) else None
    return Node(
        name=clean(name),
        online={"online": True, "offline": False}.get(kept.availability),
        state=found,
        target=target if isinstance(target, Target) else None,
        told_at=None
        if found is None
        else min(found.time, kept.state.at)
        if kept.state.old
        else kept.state.at,
        faults=tuple(
            f"its {kind} cannot be read: {one.why}"
            for kind, one in (("state", state), ("target", target))
            if isinstance(one, Unreadable)
        ),
    )


def _parsed(said: _Said, kind: type[Kind]) -> Kind | Unreadable | None:
    if not said.payload:
        return None
    return Unreadable(_TOO_LARGE) if len(said.payload) > _MOST_BYTES else read(said.payload, kind)
