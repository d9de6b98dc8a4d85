"""`specd reload`: ask the running daemon to read its config again."""

from collections.abc import Mapping
from typing import Any, Final

from specd.cli.admin import add_admin_arguments, connect
from specd.cli.parser import Arguments, Parser, describe
from specd.cli.waiting import waiting
from specd.config.reload import Change
from specd.config.section import Reload
from specd.errors import UserError

_PATIENCE: Final = 2.0


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    describe(
        parser,
        """
Ask the running daemon to read its config again. It validates everything first and keeps what
it has on any fault. A refusal exits 2 and says why. Unless reload.watch is off, it also notices
by itself within a few seconds.""",
        """
        specd reload --wait                     print what changed
        specd reload --wait --partial           what needs a restart waits for it, the rest is taken over
        specd reload --admin unix:/run/specd/admin.sock""",
    )
    add_admin_arguments(parser)
    parser.add_argument(
        "--wait", action="store_true", help="wait until the daemon has taken it over, and print each change"
    )
    parser.add_argument(
        "--partial",
        action="store_true",
        help="take over what a running daemon can; without it, a key that needs a restart has all refused",
    )


def run(args: Arguments) -> int:
    """Ask, and tell the outcome. It is waited for as long as it takes: a reload that names another target loads it."""
    seconds, body = None if args.wait else _PATIENCE, {"partial": args.partial}
    try:
        with waiting("the daemon reads its config"):
            answer = connect(args).request("POST", "/admin/v1/reload", seconds=seconds, body=body)
    except TimeoutError:
        print("asked; the daemon is still at it, its log will tell (or use --wait)")
        return 0
    if answer.status in {409, 422}:
        raise UserError(answer.message)
    report(answer.good, done="reloaded", detailed=args.wait)
    return 0


def report(reloaded: Mapping[str, Any], *, done: str, detailed: bool) -> None:
    """Print what a change of the config did; `done`: what was done, in one word."""
    changes = _changes(reloaded, "changes")
    if not changes:
        print(f"{done}: nothing changed")
    elif detailed:
        print("\n".join(change.text() for change in changes))
    else:
        print(f"{done}: {len(changes)} key{'s' if len(changes) > 1 else ''} changed")
    for change in _changes(reloaded, "pending"):
        print(f"{change.text()} waits for a restart")
    for note in reloaded.get("notes", []):
        print(note)


def _changes(reloaded: Mapping[str, Any], which: str) -> list[Change]:
    return [
        Change(change["key"], change["old"], change["new"], Reload(change["kind"]))
        for change in reloaded.get(which, [])
    ]
