"""`specd crashes`: what is kept of engines that died."""

import json
from typing import Any, Final
from urllib.parse import quote

from specd.cli.admin import add_admin_arguments, connect
from specd.cli.parser import Arguments, Parser, describe
from specd.errors import DaemonError, UserError

_PATIENCE: Final = 10.0


def add_arguments(parser: Parser) -> None:
    """Declare the subcommands."""
    describe(
        parser,
        """
What is kept of engines that died: when, how, the last step in numbers, what served, and the last lines that
the engine wrote. No text of requests, and no secret.""",
        """
        specd crashes list
        specd crashes show                          the last one
        specd crashes show 20261130T120000-0001""",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="the reports that there are, the newest first")
    listing.set_defaults(action=_list)
    showing = actions.add_parser("show", help="one of them")
    showing.add_argument("id", nargs="?", help="as `specd crashes list` prints it (default: the last one's)")
    showing.set_defaults(action=_show)
    for action in (listing, showing):
        action.add_argument("--json", action="store_true", help="the admin API's answer as it is")
        add_admin_arguments(action)


def run(args: Arguments) -> int:
    """Do what was asked."""
    code: int = args.action(args)
    return code


def _list(args: Arguments) -> int:
    found = _crashes(args)
    if args.json:
        print(json.dumps(found, indent=2))
    elif not found:
        print("no engine has died")
    else:
        for one in found:
            print(f"{one['id']}  {one['time']}  {one['reason']}: {one['text']}")
    return 0


def _show(args: Arguments) -> int:
    name = args.id or next((one["id"] for one in _crashes(args)), None)
    if name is None:
        raise UserError("no engine has died: there is no report to show")
    answer = connect(args).request("GET", f"/admin/v1/crashes/{quote(name, safe='')}", seconds=_PATIENCE)
    if answer.status == 404:
        raise UserError(answer.message)
    report = answer.good
    if args.json:
        print(json.dumps(report, indent=2))
        return 0
    lines = report.pop("last_lines")
    print(json.dumps(report, indent=2))
    print("the last lines that it wrote:")
    print("\n".join(f"  {line}" for line in lines) or "  none")
    return 0


def _crashes(args: Arguments) -> list[dict[str, Any]]:
    found = connect(args).look("/admin/v1/crashes").get("crashes")
    if not isinstance(found, list):
        raise DaemonError("the daemon's answer has no list of crashes")
    return found
