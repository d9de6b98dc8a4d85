"""The whole command line as a tree of parsers, and what may stand at each place of it."""

import argparse
from collections.abc import Container, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal

from specd.cli.parser import CACHE, CONFIG, STATE, Parser, describe
from specd.cli.registry import COMMANDS

_PATHS: Final = frozenset({"DIR", "DRAFT", "FILE", "PATH", "TARGET"})
_KEY: Final = "KEY=VALUE"

_TEXT: Final = """
Serve an LLM with speculative decoding, adapt every draft length, watch acceptance.
`specd COMMAND --help` tells more of each command."""
_EXAMPLES: Final = """
    specd models fetch demo                 get the demo model, once
    specd check -c specd.toml               is this config right?
    specd run -c specd.toml                 serve
    specd run --set policy.k_max=4          serve with one key overridden
    specd reload --wait                     take over an edited config
"""


def grown(names: Container[str] = COMMANDS) -> Parser:
    """The parser of `specd`, with the arguments of these commands; the others are not imported, and have none."""
    parser = Parser(prog="specd")
    describe(parser, _TEXT, _EXAMPLES, files=CONFIG | CACHE | STATE)
    parser.add_argument("--version", action="version", version=own_version())
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.summary)
        if name in names:
            command.load().add_arguments(subparser)
            _complete(subparser)
    return parser


def own_version() -> str:
    """Of the installed package."""
    try:
        return version("specd-llm")
    except PackageNotFoundError:
        return "specd from a checkout that is not installed"


def _complete(parser: Parser) -> None:
    """Give the actions of a command what their command says of them."""
    for place in places(parser):
        own = place.parser
        if own is parser:
            continue
        own.description = own.description or f"{_sentence(place.summary)}\n\n{parser.description}"
        own.examples = own.examples or tuple(line for line in parser.examples if line.startswith(own.prog))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?')) else '.'}"


@dataclass(frozen=True, slots=True)
class Value:
    """What follows an option, or stands alone."""

    words: tuple[str, ...] = ()
    """Those that it may be, where they are known."""
    kind: Literal["any", "path", "key"] = "any"
    """key: KEY=VALUE of the config."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command."""

    names: tuple[str, ...]
    help: str
    value: Value | None
    """None where it takes none."""


@dataclass(frozen=True, slots=True)
class Place:
    """A command, or an action of one."""

    parser: Parser
    summary: str

    @property
    def path(self) -> str:
        """As it is typed: `specd draft check`."""
        return self.parser.prog

    @property
    def options(self) -> list[Option]:
        """Those that may be given here, `--help` too."""
        return [
            Option(tuple(action.option_strings), _help(action), None if action.nargs == 0 else _value(action))
            for action in _actions(self.parser)
            if action.option_strings and action.help is not argparse.SUPPRESS
        ]

    @property
    def arguments(self) -> list[Value]:
        """What stands alone here, in order; of the names of actions, there are `below`."""
        return [
            _value(action)
            for action in _actions(self.parser)
            if not action.option_strings and not isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
        ]

    @property
    def below(self) -> list["Place"]:
        """Its commands or actions."""
        return list(_below(self.parser))


def places(parser: Parser) -> Iterator[Place]:
    """This one and all below, depth first."""
    yield from _walk(Place(parser, parser.description or ""))


def _walk(place: Place) -> Iterator[Place]:
    yield place
    for inner in place.below:
        yield from _walk(inner)


def _actions(parser: Parser) -> list[argparse.Action]:
    return parser._actions  # noqa: SLF001  argparse tells nobody else what it was told


def _help(action: argparse.Action) -> str:
    return (action.help or "") % vars(action)


def _below(parser: Parser) -> Iterator[Place]:
    for action in _actions(parser):
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}  # noqa: SLF001
            yield from (Place(inner, helps.get(name, "")) for name, inner in action.choices.items())


def _value(action: argparse.Action) -> Value:
    words = tuple(map(str, action.choices or ()))
    if action.metavar == _KEY:
        return Value(kind="key")
    if action.type is Path or action.metavar in _PATHS:
        return Value(words, "path")
    return Value(words)
