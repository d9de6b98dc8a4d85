"""`specd draft use`: another head for the model that a running daemon serves."""

from typing import Any

from specd.cli.admin import add_admin_arguments
from specd.cli.parser import Arguments
from specd.cli.target import change, full_path


def add_use(actions: Any) -> None:
    """Declare `use`. actions: the subparsers of `specd draft`."""
    parser = actions.add_parser("use", help="have a running daemon draft with this head, without a restart")
    parser.add_argument("directory", metavar="DIR", help="with a head")
    parser.add_argument(
        "--revision", metavar="R", help="what to call it in reports (default: its fingerprint)"
    )
    add_admin_arguments(parser)
    parser.set_defaults(action=_use)


def _use(args: Arguments) -> int:
    return change(args, "/admin/v1/draft", {"head": full_path(args.directory), "revision": args.revision})
