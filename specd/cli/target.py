"""`specd target`: the model that a running daemon serves, shown, replaced, and taken back."""

from typing import Any, Final

from specd.cli.admin import add_admin_arguments, connect
from specd.cli.parser import Arguments, Parser, describe
from specd.cli.status import table
from specd.cli.waiting import waiting
from specd.errors import UserError
from specd.local_paths import local_path

_REFUSALS: Final = frozenset({400, 409, 422})


def add_arguments(parser: Parser) -> None:
    """Declare the subcommands."""
    describe(
        parser,
        """
The model that the running daemon serves. An update loads the new one beside it, checks it, and only then
leads new requests there; on any fault the old one serves on, and the command exits 2 and says why.""",
        """
        specd target show
        specd target update /models/llama-2024-06 --revision june
        specd target refresh step-1200.safetensors
        specd target rollback                   within seconds, while the previous one is kept
        specd target canary                     is the draft as good as it was before the last update?""",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    show = actions.add_parser("show", help="what serves, and what a rollback would serve")
    show.set_defaults(action=_show)
    update = actions.add_parser("update", help="serve another one; returns when it serves")
    update.add_argument("path", metavar="PATH", help="named as in model.target.path")
    update.add_argument(
        "--revision", metavar="R", help="what to call it in reports (default: its fingerprint)"
    )
    update.set_defaults(action=_update)
    refresh = actions.add_parser("refresh", help="serve it with tensors out of a file")
    refresh.add_argument("file", metavar="FILE", help="safetensors, with some or all of its tensors")
    refresh.add_argument(
        "--revision", metavar="R", help="what to call it in reports (default: its fingerprint)"
    )
    refresh.set_defaults(action=_refresh)
    rollback = actions.add_parser("rollback", help="serve the previous one again")
    rollback.set_defaults(action=_rollback)
    canary = actions.add_parser("canary", help="replay fixed prompts: is the draft as good as before?")
    canary.set_defaults(action=_canary)
    for action in (show, update, refresh, rollback, canary):
        add_admin_arguments(action)


def run(args: Arguments) -> int:
    """Do what was asked."""
    code: int = args.action(args)
    return code


def _show(args: Arguments) -> int:
    print(table(connect(args).look("/admin/v1/target")))
    return 0


def _update(args: Arguments) -> int:
    return change(args, "/admin/v1/target", {"path": full_path(args.path), "revision": args.revision})


def _refresh(args: Arguments) -> int:
    return change(args, "/admin/v1/target", {"weights": full_path(args.file), "revision": args.revision})


def _rollback(args: Arguments) -> int:
    return change(args, "/admin/v1/target/rollback")


def _canary(args: Arguments) -> int:
    return change(args, "/admin/v1/target/canary")


def change(args: Arguments, path: str, body: dict[str, Any] | None = None) -> int:
    """Ask for a change of target or draft, however long it takes: a large model loads for minutes, and the daemon goes
    on if we are ended. Raises `UserError`.
    """
    with waiting("the daemon is at it: `specd target show` tells what it does"):
        answer = connect(args).request("POST", path, seconds=None, body=body)
    if answer.status in _REFUSALS:
        raise UserError(answer.message)
    changed = "{text}: target {target_revision}, draft {draft_revision}, after {seconds:.1f} s"
    print(changed.format_map(answer.good))
    return 0


def full_path(path: str) -> str:
    """As the daemon finds it, which may run elsewhere: what lies here is named in full."""
    local = local_path(path)
    return str(local.absolute()) if local.exists() else path
