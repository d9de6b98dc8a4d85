"""Calls of tools: found in the text as it comes, in the format that the model's chat template teaches.

A call goes to the client whole, when it is complete; what looked like one and is none stays text.
"""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from engine.api import Grammar
from specd.http.messages import FunctionSpec


def _no_json(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_decode: Final = json.JSONDecoder(parse_constant=_no_json).raw_decode


@dataclass(frozen=True, slots=True)
class Call:
    """One call that the model made."""

    name: str
    arguments: str
    """JSON."""


class Piece(NamedTuple):
    """What a piece of text was read as."""

    text: str = ""
    calls: tuple[Call, ...] = ()


class Reader(Protocol):
    """Reads one text, piece by piece."""

    def push(self, text: str) -> Piece:
        """What is certain now."""

    def flush(self) -> Piece:
        """What was held back: the text has ended."""


class PlainReader:
    """There are no tools: all is text."""

    def push(self, text: str) -> Piece:
        """The same."""
        return Piece(text)

    def flush(self) -> Piece:
        """Nothing is held back."""
        return Piece()


class TaggedReader:
    """`<tool_call>{"name": …, "arguments": …}</tool_call>`, as Hermes and Qwen write it, between texts or alone."""

    OPEN: Final = "<tool_call>"
    CLOSE: Final = "</tool_call>"

    def __init__(self, _: Collection[str]) -> None:
        self._held = ""
        self._inside = False
        self._called = False

    def push(self, text: str) -> Piece:
        """Text before a tag, and calls that were closed."""
        self._held += text
        pieces = list(self._closed())
        certain = "" if self._inside else self._certain()
        said = "".join(piece.text for piece in pieces) + certain
        return Piece(said, tuple(call for piece in pieces for call in piece.calls))

    def flush(self) -> Piece:
        """A call without its closing tag is one too: end of sequence may stand for the tag."""
        held, self._held = self._held, ""
        if not self._inside:
            return Piece("" if self._called and held.isspace() else held)
        call, rest = _call(held, "arguments")
        if call is None or not self.CLOSE.startswith(rest.strip()):
            return Piece(self.OPEN + held)
        return Piece(calls=(call,))

    def _closed(self) -> Iterator[Piece]:
        """All that ends with a tag."""
        while (piece := self._within() if self._inside else self._until_call()) is not None:
            yield piece

    def _until_call(self) -> Piece | None:
        before, tag, after = self._held.partition(self.OPEN)
        if not tag:
            return None
        self._held, self._inside = after, True
        return Piece(before.rstrip())

    def _within(self) -> Piece | None:
        before, tag, after = self._held.partition(self.CLOSE)
        if not tag:
            return None
        call, rest = _call(self._held, "arguments")
        rest = rest.lstrip()
        if call is not None and rest.startswith(self.CLOSE):
            self._held, self._inside, self._called = rest.removeprefix(self.CLOSE), False, True
            return Piece(calls=(call,))
        if _unfinished(self._held) if call is None else self.CLOSE.startswith(rest.rstrip()):
            return None  # the tag is part of an argument
        self._held, self._inside = after, False
        return Piece(self.OPEN + before + tag)

    def _certain(self) -> str:
        """All but the beginning of a tag, with the white space before it."""
        begun = next((n for n in range(len(self.OPEN) - 1, 0, -1) if self._held.endswith(self.OPEN[:n])), 0)
        text = self._held[: len(self._held) - begun].rstrip()
        self._held = self._held[len(text) :]
        return text


class BareReader:
    """`{"name": …, "parameters": …}` and nothing else, as Llama 3 writes it."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._is_text = False

    def push(self, text: str) -> Piece:
        """Text, once it is certain that it is no call."""
        self._held += text
        begun = self._held.lstrip()
        self._is_text = self._is_text or bool(begun and not begun.startswith("{"))
        return self._release() if self._is_text else Piece()

    def flush(self) -> Piece:
        """The call, or all of it as text: JSON may just be the answer."""
        call, rest = _call(self._held, "parameters")
        if call is None or call.name not in self._names or rest.strip():
            return self._release()
        return Piece(calls=(call,))

    def _release(self) -> Piece:
        text, self._held = self._held, ""
        return Piece(text)


def _call(text: str, key: str) -> tuple[Call | None, str]:
    """The call that a text begins with, if it does, and what follows it."""
    text = text.lstrip()
    try:
        found, end = _decode(text)
        match found:
            case {"name": str(name)} if isinstance(arguments := found.get(key, {}), dict):
                return Call(name, _json(name, arguments)), text[end:]
    except (ValueError, RecursionError):
        pass
    return None, text


def _json(name: str, arguments: dict[str, Any]) -> str:
    """The arguments. Raises ValueError where they or the name cannot be sent: halves of characters, infinities."""
    written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    f"{name}{written}".encode()
    return written


def _unfinished(text: str) -> bool:
    """Whether more text may make JSON of it."""
    text = text.strip()
    try:
        _decode(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string") or error.pos >= len(text)
    except (ValueError, RecursionError):
        pass
    return False


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes calls."""

    reader: Callable[[Collection[str]], Reader]
    """Takes the names of the tools."""
    before: str
    after: str
    between: str | None
    """None where a text has one call only."""
    key: str
    """Of the arguments."""
    ends_one: tuple[str, ...] = ()
    """Stop strings that leave one call, where there might be more."""

    def grammar(self, functions: Sequence[FunctionSpec], *, many: bool) -> Grammar:
        """Calls of these and nothing else, at least one, with arguments by each one's schema."""
        calls = " | ".join(f"call_{number}" for number in range(len(functions)))
        more = "" if self.between is None or not many else f" ({json.dumps(self.between)} one)*"
        rules = [
            f"start: one{more}",
            f"one: {json.dumps(self.before)} ({calls}) {json.dumps(self.after)}",
        ]
        for number, function in enumerate(functions):
            opening = f'{{"name": {json.dumps(function.name)}, "{self.key}": '
            rules.append(f'call_{number}: {json.dumps(opening)} arguments_{number} "}}"')
            rules.append(f"arguments_{number}: %json {json.dumps(_compact(function.parameters))}")
        return Grammar("lark", "\n".join(rules))


_NOTHING: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_AS_TAUGHT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def _compact(schema: dict[str, Any] | None) -> dict[str, Any]:
    """Spaced as templates show it: a model that may, writes white space without end."""
    return (schema or _NOTHING) | {"x-guidance": _AS_TAUGHT}


TAGGED: Final = ToolFormat(
    TaggedReader,
    before=f"{TaggedReader.OPEN}\n",
    after=f"\n{TaggedReader.CLOSE}",
    between="\n",
    key="arguments",
    ends_one=(TaggedReader.CLOSE,),
)
BARE: Final = ToolFormat(BareReader, before="", after="", between=None, key="parameters")


def taught_format(template: str) -> ToolFormat | None:
    """The format that a chat template which takes tools teaches; None for one that is not built.

    Some write the tags of the first with something else than JSON between them.
    """
    if TaggedReader.OPEN in template:
        return None if "<function=" in template or "<arg_key>" in template else TAGGED
    return BARE if '"parameters":' in template.replace('\\"', '"') else None
