"""`specd manual`: the help of all commands as one manual page."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from specd.cli.parser import CACHE, CONFIG, EXITS, STATE, Arguments, Parser, describe
from specd.cli.tree import Place, grown, own_version, places

_SUMMARY: Final = "serve an LLM with speculative decoding"
_CREDENTIALS: Final = {
    "CREDENTIALS_DIRECTORY": "set by systemd; a path of a secret in the config may begin with it",
}


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    describe(
        parser,
        "Print the manual page specd(1): the help of all commands, for man and for packages.",
        """
        specd manual | man --local-file -
        specd manual > /usr/local/share/man/man1/specd.1""",
    )


def run(_args: Arguments) -> int:
    """Print it."""
    sys.stdout.write(page(grown()))
    return 0


def page(parser: Parser) -> str:
    """In the man macros of roff."""
    return "\n".join(_page(parser)) + "\n"


def _page(parser: Parser) -> Iterator[str]:
    top, *others = places(parser)
    yield f'.TH SPECD 1 "" "specd {_text(own_version())}" "User Commands"'
    yield f".SH NAME\nspecd \\- {_SUMMARY}"
    yield ".SH SYNOPSIS\n.B specd\n.I COMMAND\n.RI [ options ]"
    yield ".SH DESCRIPTION"
    yield from _prose(top.summary)
    yield ".SH COMMANDS"
    for place in others:
        yield from _command(place)
    yield ".SH FILES AND ENVIRONMENT"
    yield from _tagged(CONFIG | CACHE | STATE | _CREDENTIALS)
    yield ".SH EXIT STATUS"
    yield from _tagged(EXITS)
    yield ".SH EXAMPLES"
    yield from _verbatim(parser.examples)


def _command(place: Place) -> Iterator[str]:
    parser = place.parser
    yield f".SS {_text(place.path)}"
    yield from _prose(place.summary if place.path.count(" ") > 1 else parser.description or place.summary)
    usage = parser.format_usage().removeprefix("usage: ").splitlines()
    yield ".PP"
    yield from _verbatim(line.strip() for line in usage)
    yield from _tagged(
        {", ".join(option.names): option.help for option in place.options if "-h" not in option.names}
    )
    own = {name: text for name, text in parser.exits.items() if name not in EXITS}
    yield from _tagged({f"exit code {name}": text for name, text in own.items()})
    if parser.examples and not place.below:
        yield ".PP"
        yield from _verbatim(parser.examples)


def _prose(text: str) -> Iterator[str]:
    """Paragraphs; one in which lines are indented is left as it is."""
    for paragraph in text.strip().split("\n\n"):
        yield ".PP"
        rows = paragraph.splitlines()
        yield from _verbatim(rows) if any(row.startswith(" ") for row in rows) else map(_text, rows)


def _verbatim(rows: Iterable[str]) -> Iterator[str]:
    yield ".nf"
    yield from map(_text, rows)
    yield ".fi"


def _tagged(rows: Mapping[str, str]) -> Iterator[str]:
    for name, text in rows.items():
        yield f".TP\n.B {_text(name)}\n{_text(text)}"


def _text(text: str) -> str:
    """What roff would take for orders, as text: backslashes and hyphens, and a dot or a quote that begins a line."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.lstrip().startswith((".", "'")) else escaped
