"""The reference page of the config, out of the schema: `specd schema --markdown`."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from specd.config.files import SecretFile
from specd.config.paths import section_of
from specd.config.schema import Config
from specd.config.section import Section

_INTRO: Final = """\
# Configuration

Generated from the schema: `specd schema --markdown > docs/configuration.md`. `specd schema` prints the same
as JSON Schema, `specd check` tells what is wrong with a file.

The config is TOML. Later sources win: the main file (`-c`, by default `/etc/specd/specd.toml`), then
`conf.d/*.toml` beside it in name order, then `SPECD_…` variables (`SPECD_POLICY__K_MAX=4`), then
`--set policy.k_max=4`. Tables merge key by key, arrays are replaced whole. An unknown key is an error.

A **hot** key changes at once with a [reload](operating.md#reload). A change of a **drain** key is an
[update of the target](updates.md), which new requests get. A **restart** key needs a new process; a reload that changes
one is refused as a whole.
"""

_TYPES: Final[Mapping[Any, str]] = {
    int: "integer",
    float: "number",
    bool: "true or false",
    Path: "path",
    SecretFile: "path of a [secret](operating.md#secrets)",
}

_NAMES: Final[Mapping[Any, str]] = {tuple: "array", dict: "table"}


def page() -> str:
    """The whole page, in Markdown."""
    return "\n".join([_INTRO, *_section(Config, "", array=None)]).rstrip() + "\n"


def _section(section: type[Section], path: str, array: FieldInfo | None) -> Iterator[str]:
    """A heading, a table of the section's own keys, and then the sections in it."""
    fields = {field.alias or name: field for name, field in section.model_fields.items()}
    inner = {key: found for key, field in fields.items() if (found := section_of(field.annotation))}
    own = [_row(key, field) for key, field in fields.items() if key not in inner]
    if own:
        title = f"[{path}]" if array is None else f"[[{path}]]"
        unset = "" if array is None else f" Without any: `{_toml(array.default)}`."
        yield f"## `{title}`\n\n{section.__doc__}{unset}\n"
        yield "| key | default | values | change | meaning |\n|---|---|---|---|---|"
        yield from own
        yield ""
    for key, found in inner.items():
        is_array = fields[key].annotation is not found
        yield from _section(found, f"{path}.{key}".lstrip("."), array=fields[key] if is_array else None)


def _row(key: str, field: FieldInfo) -> str:
    assert isinstance(field.json_schema_extra, dict), key
    default = "required" if field.default is PydanticUndefined else f"`{_toml(field.default)}`"
    cells = (
        f"`{key}`",
        "unset" if field.default is None else default,
        _values(field),
        str(field.json_schema_extra["reload"]),
        field.description or "",
    )
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _values(field: FieldInfo) -> str:
    kinds = [kind for kind in get_args(field.annotation) if kind is not NoneType]
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{_toml(kind)}`" for kind in kinds)
    if kinds and get_origin(kinds[0]) is Literal:  # one of them, or a list
        named = [name for kind in kinds if get_origin(kind) is Literal for name in get_args(kind)]
        return ", ".join(f"`{_toml(name)}`" for name in named) + ", or a list of them"
    kind = kinds[0] if NoneType in get_args(field.annotation) else field.annotation
    name = _NAMES.get(get_origin(kind), _TYPES.get(kind, "text"))
    limits = [text for limit in field.metadata for text in _limits(limit)]
    return " ".join([name, ", ".join(limits)]).strip()


def _limits(limit: object) -> Iterator[str]:
    match limit:
        case annotated_types.Ge(bound):
            yield f"≥ {bound}"
        case annotated_types.Gt(bound):
            yield f"> {bound}"
        case annotated_types.Le(bound):
            yield f"≤ {bound}"
        case _:
            return


def _toml(value: Any) -> str:
    """A default as it would be written in the file."""
    match value:
        case BaseModel():
            written = value.model_dump(by_alias=True, exclude_unset=True)
            return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in written.items()) + "}"
        case tuple():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)
