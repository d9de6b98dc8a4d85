"""Silences: of which alerts nobody is told for a time. Their state goes on and is shown."""

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

from specd.errors import UserError

Operator = Literal["=", "!=", "=~", "!~"]

_MATCHER: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*(=~|!~|!=|=)\s*(.*?)\s*", re.DOTALL)
_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_AT_MOST: Final = 1000
_REMEMBERED: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Matcher:
    """A condition on one label; a label that is absent counts as empty."""

    name: str
    operator: Operator
    value: str

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether it holds. An expression must match the whole value."""
        found = labels.get(self.name, "")
        match self.operator:
            case "=":
                return found == self.value
            case "!=":
                return found != self.value
            case "=~":
                return re.fullmatch(self.value, found) is not None
            case "!~":
                return re.fullmatch(self.value, found) is None

    def __str__(self) -> str:
        return f"{self.name}{self.operator}{self.value}"


@dataclass(frozen=True, slots=True)
class Silence:
    """Alerts that all matchers hold for are not told of, from start to end, in Unix seconds."""

    id: str
    matchers: tuple[Matcher, ...]
    starts_at: float
    ends_at: float
    comment: str = ""
    created_by: str = ""

    def covers(self, labels: Mapping[str, str], now: float) -> bool:
        """Whether it is in force and meant for this alert."""
        return self.starts_at <= now < self.ends_at and all(one.matches(labels) for one in self.matchers)

    def state(self, now: float) -> Literal["pending", "active", "expired"]:
        """As Alertmanager calls it."""
        if now < self.starts_at:
            return "pending"
        return "active" if now < self.ends_at else "expired"


class Silences:
    """Those that are in force, to come, or ended within a day."""

    def __init__(self) -> None:
        self._silences: dict[str, Silence] = {}

    def restore(self, silences: Iterable[Silence]) -> None:
        """Go on with these."""
        self._silences = {one.id: one for one in silences}

    def all(self) -> list[Silence]:
        """By when they were made."""
        return list(self._silences.values())

    def add(self, silence: Silence) -> None:
        """From now on. Raises `UserError` where there are too many."""
        if len(self._silences) >= _AT_MOST:
            raise UserError(f"there are {_AT_MOST} silences: delete some, or make one that matches more")
        self._silences[silence.id] = silence

    def delete(self, name: str) -> Silence | None:
        """Take it out; None where there is none of this id."""
        return self._silences.pop(name, None)

    def covering(self, labels: Mapping[str, str], now: float) -> Silence | None:
        """One that is meant for this alert now: of several, the one that ends last."""
        found = [one for one in self._silences.values() if one.covers(labels, now)]
        return max(found, key=lambda one: one.ends_at, default=None)

    def forget(self, now: float) -> list[str]:
        """Take out those that ended more than a day ago; their ids."""
        old = [one.id for one in self._silences.values() if now - one.ends_at > _REMEMBERED]
        for name in old:
            del self._silences[name]
        return old


def new_silence(
    matchers: Sequence[str], seconds: float, now: float, *, comment: str = "", created_by: str = ""
) -> Silence:
    """One that begins now. Raises `UserError` when it would match nothing in particular, or never."""
    found = tuple(matcher for text in matchers for matcher in parse_matchers(text))
    if not found:
        raise UserError("a silence needs a matcher, such as class=chat or the name of an alert")
    if all(matcher.matches({}) for matcher in found):
        raise UserError(
            f"{', '.join(map(str, found))} matches every alert that lacks these labels:"
            " add a matcher that asks for something, such as alertname=SpecdAcceptanceDrift"
        )
    if not 0 < seconds < float("inf"):
        raise UserError(f"a silence lasts longer than 0 s, not {seconds:g}")
    return Silence(secrets.token_hex(8), found, now, now + seconds, comment, created_by)


def parse_matchers(text: str) -> list[Matcher]:
    """`class=chat,severity!=critical`; a bare word is an alert's name. Raises `UserError`."""
    return [_matcher(part) for part in text.split(",") if part.strip()]


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `2h`, `1h30m`, `1d`. Raises `UserError`."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        raise UserError(f"{text!r} is no time: write it as 90s, 30m, 2h, 1h30m or 1d")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _matcher(text: str) -> Matcher:
    if re.fullmatch(r"\s*\w+\s*", text):
        return Matcher("alertname", "=", text.strip())
    found = _MATCHER.fullmatch(text)
    if found is None:
        raise UserError(
            f"{text!r} is no matcher: write label=value, label!=value, label=~expression or an alert's name"
        )
    name, value = found[1], found[3]
    operator = cast("Operator", found[2])
    if "~" in operator:
        _check(value)
    return Matcher(name, operator, value.strip('"'))


def _check(expression: str) -> None:
    try:
        re.compile(expression)
    except re.error as error:
        raise UserError(f"{expression!r} is no regular expression: {error}") from None
