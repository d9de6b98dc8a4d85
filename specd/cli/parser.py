"""Argument parsing shared by the commands, and help that is a manual page."""

import argparse
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

Arguments = argparse.Namespace

_NONE: Final[Mapping[str, str]] = MappingProxyType({})

EXITS: Final = {
    "0": "done",
    "1": "a fault of ours, or of the daemon that was asked",
    "2": "your mistake: a sentence on stderr says what would be right",
}
INTERRUPTED: Final = {"130": "ended by Ctrl-C"}
CONFIG: Final = {
    "/etc/specd/specd.toml": "the config, where -c names no other",
    "conf.d/*.toml": "beside it: read after it, in the order of their names",
    "SPECD_POLICY__K_MAX=4": "environment like this overrides a key of the config",
}
CACHE: Final = {
    "SPECD_CACHE_DIR": "directory of models and compiled kernels (default: ~/.cache/specd)",
}
STATE: Final = {
    "SPECD_STATE_DIR": "directory of alerts and of what detectors have learned (default: ~/.local/state/specd)",
}


class Parser(argparse.ArgumentParser):
    """A parser whose help tells also of examples, files and exit codes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.formatter_class = argparse.RawDescriptionHelpFormatter
        self.examples: tuple[str, ...] = ()
        """Lines to copy."""
        self.files: dict[str, str] = {}
        """What is read or written, environment too, and what it is for."""
        self.exits: dict[str, str] = dict(EXITS)
        """Exit codes and what they mean."""

    def format_help(self) -> str:
        """As argparse has it, and the sections that it does not know."""
        return super().format_help() + "".join(f"\n{section}\n" for section in self._sections())

    def _sections(self) -> Iterator[str]:
        if self.examples:
            yield "\n".join(["examples:", *(f"  {line}" for line in self.examples)])
        if self.files:
            yield "\n".join(["files and environment:", *_table(self.files)])
        yield "\n".join(["exit codes:", *_table(self.exits)])


def _table(rows: Mapping[str, str]) -> Iterator[str]:
    wide = max(map(len, rows))
    columns = max(shutil.get_terminal_size().columns - 2, wide + 24)
    for name, text in rows.items():
        yield textwrap.fill(
            text, columns, initial_indent=f"  {name:<{wide}}  ", subsequent_indent=" " * (wide + 4)
        )


def describe(
    parser: Parser,
    text: str,
    examples: str,
    *,
    files: Mapping[str, str] = _NONE,
    exits: Mapping[str, str] = _NONE,
) -> None:
    """Give a command a help page that teaches: what it does, lines to copy, files and exit codes of its own."""
    parser.description = text.strip()
    parser.examples = lines(examples)
    parser.files |= files
    parser.exits |= exits


def lines(text: str) -> tuple[str, ...]:
    """What is written in a block, without what indents it."""
    return tuple(line.strip() for line in text.strip().splitlines())


def add_config_arguments(parser: Parser) -> None:
    """`-c` and `--set`, the same for every command that reads the config."""
    parser.files = CONFIG | parser.files
    parser.add_argument(
        "-c",
        "--config",
        type=Path,
        metavar="FILE",
        help="the config, with conf.d/*.toml beside it (default: /etc/specd/specd.toml if it exists)",
    )
    parser.add_argument(
        "--set",
        dest="flags",
        action="append",
        default=[],
        type=_override,
        metavar="KEY=VALUE",
        help="override one key, for example policy.k_max=4; may be repeated",
    )


def _override(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE, such as policy.k_max=4")
    return key, value
