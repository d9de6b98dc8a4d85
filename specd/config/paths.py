"""Key paths as people write them: `policy.load.off_above`, `alerts.rules[0].below`."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from specd.config.schema import Config
from specd.config.section import Reload, Section

Location = tuple[str | int, ...]


def dotted(location: Sequence[str | int]) -> str:
    """`("alerts", "rules", 0, "below")` as `alerts.rules[0].below`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def leaves(tree: Mapping[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value that is not a table, with its path. Arrays are one value; an empty table has none."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*at, name))
        else:
            yield (*at, name), value


def section_at(location: Sequence[str | int]) -> type[Section] | None:
    """The section that a path leads to, through tables and arrays of tables. None where there is none."""
    section: type[Section] = Config
    for part in location:
        if isinstance(part, int):
            continue
        field = _field(section, part)
        inner = None if field is None else section_of(field.annotation)
        if inner is None:
            return None
        section = inner
    return section


def names(section: type[Section]) -> list[str]:
    """The keys of a section as they are written in the file."""
    return [field.alias or name for name, field in section.model_fields.items()]


def reload_kind(location: Sequence[str | int]) -> Reload:
    """What it takes to change the value at this path, which must be a known key."""
    section = section_at(location[:-1])
    field = None if section is None else _field(section, str(location[-1]))
    extra = None if field is None else field.json_schema_extra
    assert isinstance(extra, dict), f"{location = } is not a key"
    return Reload(str(extra["reload"]))


@cache
def known_keys() -> tuple[str, ...]:
    """All dotted keys; those of an array of tables without their index."""
    return tuple(_keys(Config, ""))


def unknown(location: Sequence[str | int]) -> str:
    """What is right where an unknown key stands: the nearest known key, or the ones that there are."""
    *parent, name = location
    section = section_at(parent)
    if section is None:
        return "unknown key"
    near = difflib.get_close_matches(str(name), names(section), n=1, cutoff=0.7)
    if near:
        return f"unknown key; did you mean {dotted((*parent, near[0]))}?"
    elsewhere = _elsewhere(str(name))
    if elsewhere is not None:
        return f"unknown key; did you mean {elsewhere}?"
    where = f"{dotted(parent)} has" if parent else "there are"
    return f"unknown key; {where} {', '.join(names(section))}"


def _elsewhere(name: str) -> str | None:
    """A key of another section with this name, or one much like it."""
    by_name = {key.rpartition(".")[2]: key for key in reversed(known_keys())}
    near = difflib.get_close_matches(name, by_name, n=1, cutoff=0.85)
    return by_name[near[0]] if near else None


def _keys(section: type[Section], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        key = prefix + (field.alias or name)
        inner = section_of(field.annotation)
        if inner is None:
            yield key
        else:
            yield from _keys(inner, f"{key}.")


def _field(section: type[Section], name: str) -> FieldInfo | None:
    by_name = {field.alias or key: field for key, field in section.model_fields.items()}
    return by_name.get(name) or section.model_fields.get(name)


def section_of(annotation: Any) -> type[Section] | None:
    """The section inside an annotation: itself, or what an array of tables holds."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation if issubclass(annotation, Section) else None
    return next((inner for inner in map(section_of, get_args(annotation)) if inner is not None), None)
