"""Parse, dispatch, and turn exceptions into exit codes: 0 fine, 2 the user's mistake, 1 a fault of ours."""

import difflib
import os
import sys
from collections.abc import Sequence
from typing import Final

from specd.cli.registry import COMMANDS
from specd.cli.tree import grown
from specd.errors import DaemonError, UserError

OK: Final = 0
OUR_FAULT: Final = 1
USER_MISTAKE: Final = 2


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
    parser = grown(() if typed is None else (typed,))
    args = parser.parse_args(arguments)
    if typed is None:
        parser.print_help()
        return USER_MISTAKE
    return COMMANDS[typed].load().run(args)


def _refusal(typed: str) -> str:
    near = difflib.get_close_matches(typed, COMMANDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
    return f"specd {typed}: no such command; {hint}"
