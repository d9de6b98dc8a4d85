"""Configs out of the schema, for fuzzing: keys that there are with values that are often right, and bytes made of that.

Nothing that they ask for leaves the host or a folder: addresses are a closed port of loopback, paths are among a few.
"""

from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import annotated_types
import tomli_w
from hypothesis import strategies as st
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from specd.config.layers import merge
from specd.config.schema import Config
from specd.config.section import Section
from specd.config.sources import nested

Values = st.SearchStrategy[Any]

NOWHERE: Final = "http://127.0.0.1:9"
TEXTS: Final = st.text(max_size=20)
JUNK: Final[Values] = st.one_of(
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    TEXTS,
    st.dates(),
    st.lists(st.integers() | TEXTS, max_size=3),
    st.dictionaries(TEXTS, st.integers(), max_size=2),
)


@cache
def trees(model: Path, *, leaving_out: frozenset[str] = frozenset()) -> st.SearchStrategy[dict[str, Any]]:
    """Configs of a few keys. model: a directory with one, in whose folder all paths are."""
    by_hand = _by_hand(model)
    values = {key: one for key, one in _keys(Config, (), by_hand) if ".".join(key) not in leaving_out}
    pairs = st.sampled_from(sorted(values)).flatmap(
        lambda key: st.tuples(st.just(key), _or_junk(values[key]))
    )
    return st.lists(pairs, max_size=5).map(lambda found: merge(nested(key, value) for key, value in found))


@cache
def documents(model: Path, *, leaving_out: frozenset[str] = frozenset()) -> st.SearchStrategy[bytes]:
    """The same as files, of which some were damaged."""
    whole = trees(model, leaving_out=leaving_out).map(lambda tree: tomli_w.dumps(tree).encode())
    return st.one_of(whole, whole, st.builds(_damaged, whole, st.lists(_EDITS, min_size=1, max_size=4)))


_EDITS: Final = st.tuples(st.floats(0, 1), st.integers(0, 8), st.binary(max_size=4))


def _damaged(text: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    """Each edit: where, how many bytes go, and what comes in their place."""
    for where, gone, instead in edits:
        at = int(where * len(text))
        text = text[:at] + instead + text[at + gone :]
    return text


def _or_junk(values: Values) -> Values:
    return st.integers(0, 5).flatmap(lambda throw: values if throw else JUNK)


def _by_hand(model: Path) -> dict[str, Values]:
    """What the types do not say, or what must stay within the host."""
    folder = model.parent
    paths = st.sampled_from(
        [str(folder / "there"), str(folder / "missing"), str(folder), "", "\0", "~nobody/x", "x" * 300]
    )
    return {
        "listen": st.sampled_from(["127.0.0.1:0", "unix:" + str(folder / "sock"), "0.0.0.0:1", "", "x:y"]),
        "path": st.sampled_from([str(model), str(folder / "missing"), str(folder), "", "~", "x" * 300]),
        "model": st.sampled_from([str(model), str(folder), "", "x" * 300]),
        "head": st.sampled_from([str(model), str(folder), ""]),
        "url": st.builds(NOWHERE.__add__, TEXTS)
        | st.sampled_from(["", "mqtt://127.0.0.1:9", "http://[", "mqtts://"]),
        "metrics_url": st.just(NOWHERE),
        "runbook_url": TEXTS,
        "": paths,
    }


def _keys(section: type[Section], at: tuple[str, ...], by_hand: dict[str, Values]) -> Any:
    for name, field in section.model_fields.items():
        key = (*at, field.alias or name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _keys(field.annotation, key, by_hand)
        else:
            yield key, _of_field(key[-1], field, by_hand)


def _of_field(name: str, field: FieldInfo, by_hand: dict[str, Values]) -> Values:
    if name in by_hand:
        return by_hand[name]
    return _of(field.annotation, field.metadata, by_hand)


def _of(annotation: Any, limits: list[Any], by_hand: dict[str, Values]) -> Values:
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _of(arguments[0], [*limits, *arguments[1:]], by_hand)
    if get_origin(annotation) is Literal:
        return st.sampled_from(arguments)
    if get_origin(annotation) is tuple:
        inner = [_of(one, [], by_hand) for one in arguments if one is not Ellipsis]
        return st.lists(inner[0], max_size=3) if Ellipsis in arguments else st.tuples(*inner).map(list)
    kind = get_origin(annotation) or annotation
    if arguments and kind is not dict:
        return st.one_of(*(_of(one, limits, by_hand) for one in arguments if one is not NoneType))
    if issubclass(kind, Section):
        return _entries(kind, by_hand)
    return by_hand[""] if kind is Path else _SIMPLE[kind](limits)


def _entries(section: type[Section], by_hand: dict[str, Values]) -> Values:
    """An entry of an array of tables: what it needs, and perhaps something else."""
    of = {
        f.alias or name: (_of_field(f.alias or name, f, by_hand), f)
        for name, f in section.model_fields.items()
    }
    needed = {key: values for key, (values, field) in of.items() if field.default is PydanticUndefined}
    others = {key: values for key, (values, _) in of.items() if key not in needed}
    extra = st.sampled_from(sorted(others)).flatmap(
        lambda key: st.tuples(st.just(key), _or_junk(others[key]))
    )
    return st.builds(
        lambda entry, more: entry | dict(more), st.fixed_dictionaries(needed), st.lists(extra, max_size=3)
    )


def _integers(limits: list[Any]) -> Values:
    low, high = _bounds(limits)
    return st.integers(int(low), int(high))


def _floats(limits: list[Any]) -> Values:
    low, high = _bounds(limits)
    return st.floats(low, high) | st.sampled_from([0.0, 0.5, 1.0, 60.0])


def _bounds(limits: list[Any]) -> tuple[float, float]:
    low, high = 0.0, 1e6
    for limit in limits:
        match limit:
            case annotated_types.Ge(bound) | annotated_types.Gt(bound):
                low = bound
            case annotated_types.Le(bound) | annotated_types.Lt(bound):
                high = bound
    return low, max(low, high)


_SIMPLE: Final[dict[Any, Any]] = {
    dict: lambda _: st.dictionaries(TEXTS, JUNK, max_size=3),
    bool: lambda _: st.booleans(),
    int: _integers,
    float: _floats,
    str: lambda _: TEXTS,
}
