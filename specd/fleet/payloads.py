"""What a node says of itself, read with suspicion: whoever may write to its topics may write anything there."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

_CLASSES: Final = 32
_ALERTS: Final = 32
_NAME: Final = 64
_SENTENCE: Final = 300

_Share = Annotated[float, Meta(ge=0, le=1)]
_Count = Annotated[int, Meta(ge=0, le=10**9)]
_Figure = Annotated[float, Meta(ge=0, le=1e9)]
_Time = Annotated[float, Meta(ge=0, le=1e11)]
"""Unix seconds that a calendar has."""


class Firing(msgspec.Struct, frozen=True):
    """An alert that is open."""

    name: str = ""
    fingerprint: str = ""
    startsAt: str = ""  # noqa: N815  as Alertmanager calls it
    traffic_class: str | None = msgspec.field(default=None, name="class")
    summary: str = ""


class Refused(msgspec.Struct, frozen=True):
    """A change of the target that came to nothing."""

    unix_time: _Time = 0.0
    text: str = ""


class Open(msgspec.Struct, frozen=True):
    """How many alerts are."""

    pending: _Count = 0
    firing: _Count = 0


class State(msgspec.Struct, frozen=True):
    """Of `<prefix>/<node>/state`. What an older version does not say has its default."""

    time: _Time = 0.0
    state_seconds: _Figure = 300.0
    version: str = ""
    ready: bool = False
    unready_because: str | None = None
    load: str = ""
    running: _Count = 0
    waiting: _Count = 0
    tokens_per_second: _Figure = 0.0
    k: _Figure | None = None
    acceptance: dict[str, _Share | None] = {}
    doing: str | None = None
    refused: Refused | None = None
    alerts: Open = Open()
    firing: list[Firing] = []
    config: str = ""


class Changed(msgspec.Struct, frozen=True):
    """How its target came to take the place of another one."""

    unix_time: _Time
    by: Literal["update", "rollback"]
    previous: str = ""


class Target(msgspec.Struct, frozen=True):
    """Of `<prefix>/<node>/target`."""

    name: str = ""
    target_revision: str | None = None
    draft_revision: str | None = None
    quantization: str | None = None
    changed: Changed | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A payload that is none of ours; the text is a clause that says why."""

    why: str


Kind = TypeVar("Kind", State, Target)


def read(payload: bytes, kind: type[Kind]) -> Kind | Unreadable:
    """The payload, with nothing in it that is too long, or that would not stay in its place on a screen."""
    try:
        found = msgspec.json.decode(payload, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return Unreadable(clean(str(error)))
    built: Kind = msgspec.convert(_cleaned(msgspec.to_builtins(found)), kind)
    return built


def clean(text: str, longest: int = _SENTENCE) -> str:
    """Without control characters, those that turn the direction of writing among them, and not longer than this."""
    cut = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return "".join(letter if letter.isprintable() else " " for letter in cut)


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_cleaned(one) for one in value[:_ALERTS]]
    if isinstance(value, dict):
        return {clean(name, _NAME): _cleaned(one) for name, one in list(value.items())[:_CLASSES]}
    return value
