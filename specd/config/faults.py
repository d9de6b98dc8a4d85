"""What pydantic found wrong, as lines for people: where it was written, which key, what is right."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from specd.config.paths import Location, dotted, leaves, unknown
from specd.config.sources import Layer

_LARGEST: Final = 1 << 63
_DEEPEST: Final = 16
_WORDS: Final = {
    "  ": " ",
    "a valid integer": "a whole number",
    "a valid array": "an array",
    "a valid ": "a ",
    "an object": "a table",
}


def faults(error: ValidationError, layers: Sequence[Layer], merged: Mapping[str, Any]) -> list[str]:
    """One line per error. `merged` is what was validated, `layers` what it was merged from."""
    origins: dict[Location, str] = {at: layer.origin for layer in layers for at, _ in leaves(layer.values)}
    lines = []
    for details in error.errors(include_url=False, include_input=False):
        location, message = details["loc"], _message(details, merged)
        written_in = _origin(location, message, origins) or _table_origin(location, layers)
        lines.append(": ".join(part for part in (written_in, dotted(location), message) if part))
    return lines


def impossible(layers: Sequence[Layer]) -> Iterator[str]:
    """A line for each value that no key can have, though TOML or JSON can say it: not even a comparison would do."""
    for layer in layers:
        for at, value in leaves(layer.values):
            if why := _impossible(value):
                yield f"{layer.origin}: {dotted(at)}: {why}"


def _impossible(value: Any, depth: int = 0) -> str | None:
    match value:
        case str() if "\0" in value:
            return "holds a NUL character, which neither a name nor a path can: leave it out"
        case int() if not -_LARGEST <= value < _LARGEST:
            return "a number has at most 64 bits"
        case Mapping() | list() if depth >= _DEEPEST:
            return "arrays and tables are nested too deeply here"
        case Mapping():
            return next(filter(None, (_impossible(inner, depth + 1) for inner in value.values())), None)
        case list():
            return next(filter(None, (_impossible(inner, depth + 1) for inner in value)), None)
        case _:
            return None


def _message(details: ErrorDetails, merged: Mapping[str, Any]) -> str:
    match details["type"]:
        case "extra_forbidden":
            return unknown(details["loc"])
        case "missing":
            return "is required"
        case "value_error":
            return details["msg"].removeprefix("Value error, ")
        case _:
            wanted = re.sub(r"^\w+ should (have|match)|^\w+ should", r"must \1", details["msg"])
            for theirs, ours in _WORDS.items():
                wanted = wanted.replace(theirs, ours)
            return f"{wanted}, not {_kind(_value_at(merged, details['loc']))}"


def _kind(value: Any) -> str:
    """What stands there. Text is never quoted, since it may be a secret."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case str():
            return "this text"
        case Mapping():
            return "a table"
        case _:
            return "this array" if isinstance(value, Sequence) else f"a {type(value).__name__}"


def _value_at(tree: Any, location: Location) -> Any:
    """What stands at a path, or the last thing on the way to it."""
    for part in location:
        try:
            tree = tree[part]
        except (LookupError, TypeError):
            break
    return tree


def _origin(location: Location, message: str, origins: Mapping[Location, str]) -> str:
    """The sources of the value at fault, or of the keys that a fault between several keys names."""
    for length in range(len(location), 0, -1):
        if location[:length] in origins:
            return origins[location[:length]]
    below = dict(_below(location, origins))
    named = {
        at: origin for at, origin in below.items() if re.search(rf"\b{re.escape(str(at[-1]))}\b", message)
    }
    return " and ".join(dict.fromkeys((named or below).values()))


def _below(location: Location, origins: Mapping[Location, str]) -> Iterator[tuple[Location, str]]:
    for at, origin in origins.items():
        if at[: len(location)] == location:
            yield at, origin


def _table_origin(location: Location, layers: Sequence[Layer]) -> str:
    """The last source with a table at this path: an empty one holds no value that could tell."""
    return next((layer.origin for layer in reversed(layers) if location and location[0] in layer.values), "")
