"""`specd top`: how the running daemon speculates, and why, again and again."""

import time
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from specd.cli.admin import Admin, add_admin_arguments, connect
from specd.cli.parser import Arguments, Parser, describe
from specd.cli.shown import BAD
from specd.cli.top_screen import screen
from specd.cli.values import number
from specd.errors import DaemonError, UserError

_LOOKED_AT: Final = (
    200  # decisions, of which the newest are shown, those before others that tell of alternatives
)
_SHOWN: Final = 8


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    describe(
        parser,
        "A live screen: load, tokens per second, draft lengths, acceptance, the last decisions, what drafting gives.",
        """
        specd top
        specd top --once
        specd top --every 0.5""",
    )
    add_admin_arguments(parser)
    parser.add_argument(
        "--every",
        type=number(float, 0.1, 3600, "seconds"),
        default=1.0,
        help="seconds between two looks (default: 1)",
    )
    parser.add_argument(
        "--once", action="store_true", help="print one screen and end, as where this is no terminal"
    )


def run(args: Arguments) -> int:
    """Ask and show until Ctrl-C."""
    admin, console = connect(args), Console(highlight=False)
    if args.once or not console.is_terminal:
        console.print(*_look(admin), sep="\n", soft_wrap=True)
        return 0
    with Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(_cut(_look_again(admin)), refresh=True)
                time.sleep(args.every)
        except KeyboardInterrupt:
            return 0


def _cut(lines: list[Text]) -> Group:
    """What is longer than the terminal is wide ends in an ellipsis: a line more would push another off the screen."""
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _look_again(admin: Admin) -> list[Text]:
    """A daemon that is started anew comes back to the screen."""
    try:
        return _look(admin)
    except (UserError, DaemonError) as fault:
        return [Text(str(fault), BAD)]


def _look(admin: Admin) -> list[Text]:
    """One screen. Raises `UserError` and `DaemonError`."""
    status = admin.look("/admin/v1/status")
    decisions = admin.look(f"/admin/v1/decisions?limit={_LOOKED_AT}")["decisions"]
    telling = [each for each in decisions if each["alternatives"]]
    return list(screen(status, (telling or decisions)[:_SHOWN]))
