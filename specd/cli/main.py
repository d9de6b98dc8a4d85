"""Parse, dispatch, and turn exceptions into exit codes: 0 fine, 2 the user's mistake, 1 a fault of ours."""

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from specd.cli.parser import Parser, indented
from specd.cli.registry import COMMANDS, CommandModule
from specd.errors import DaemonError, UserError

OK: Final = 0
OUR_FAULT: Final = 1
USER_MISTAKE: Final = 2

_EXAMPLES: Final = """
    specd models fetch demo                 get the demo model, once
    specd check -c specd.toml               is this config right?
    specd run -c specd.toml                 serve
    specd run --set policy.k_max=4          serve with one key overridden
    specd reload --wait                     take over an edited config
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line. Returns the exit code; argparse itself exits on bad usage and on `--help`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
    except UserError as error:
        print(error, file=sys.stderr)
        return USER_MISTAKE
    except DaemonError as error:
        print(error, file=sys.stderr)
        return OUR_FAULT
    except BrokenPipeError:  # `specd schema | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        return 130
    return code


def _dispatch(arguments: list[str]) -> int:
    typed = next((argument for argument in arguments if not argument.startswith("-")), None)
    if typed is not None and typed not in COMMANDS:
        raise UserError(_refusal(typed))
    parser, module = _parser(typed)
    args = parser.parse_args(arguments)
    if module is None:
        parser.print_help()
        return USER_MISTAKE
    return module.run(args)


def _parser(typed: str | None) -> tuple[Parser, CommandModule | None]:
    parser = Parser(
        prog="specd",
        description="Serve an LLM with speculative decoding, adapt every draft length, watch acceptance.",
        epilog=f"examples:\n{indented(_EXAMPLES)}\n\n`specd COMMAND --help` tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    module = None
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.summary)
        if name == typed:
            module = command.load()
            module.add_arguments(subparser)
    return parser, module


def _refusal(typed: str) -> str:
    near = difflib.get_close_matches(typed, COMMANDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
    return f"specd {typed}: no such command; {hint}"


def _version() -> str:
    try:
        return version("specd-llm")
    except PackageNotFoundError:
        return "specd from a checkout that is not installed"
