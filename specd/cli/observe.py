"""`specd observe`: engines of others that are looked at."""

import json
from typing import Any, Final
from urllib.parse import quote

from rich.console import Console

from specd.cli import shown
from specd.cli.admin import add_admin_arguments, connect
from specd.cli.parser import Arguments, Parser, describe
from specd.errors import DaemonError, UserError

_PATIENCE: Final = 10.0


def add_arguments(parser: Parser) -> None:
    """Declare the subcommands."""
    describe(
        parser,
        """
Engines that the config lists under [[observe]]: do they answer, is it the target that is known there, and what becomes
of its drafts. Where another target answers and is meant to, `accept` ends the alert.""",
        """
        specd observe list
        specd observe show vllm-a
        specd observe canary vllm-a
        specd observe accept vllm-a""",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="each of them in a line")
    listing.set_defaults(action=_list)
    showing = actions.add_parser("show", help="all that is known of one")
    showing.set_defaults(action=_show)
    accepting = actions.add_parser("accept", help="the target that answers there now is meant to")
    accepting.set_defaults(action=_act, verb="accept")
    asking = actions.add_parser("canary", help="ask the canary's prompts there, now")
    asking.set_defaults(action=_act, verb="canary")
    for action in (showing, accepting, asking):
        action.add_argument("name", help="as the config names it")
    for action in (listing, showing, accepting, asking):
        add_admin_arguments(action)


def run(args: Arguments) -> int:
    """Do what was asked."""
    code: int = args.action(args)
    return code


def _list(args: Arguments) -> int:
    found = _observed(args)
    if not found:
        print("nothing is observed: list engines under [[observe]] in the config")
    console = Console(highlight=False)
    for one in found:
        console.print(shown.observed(one))
    return 0


def _show(args: Arguments) -> int:
    found = [one for one in _observed(args) if one["name"] == args.name]
    if not found:
        raise UserError(f"no engine of the name {args.name} is observed: `specd observe list` has them")
    print(json.dumps(found[0], indent=2))
    return 0


def _act(args: Arguments) -> int:
    path = f"/admin/v1/observed/{quote(args.name, safe='')}/{args.verb}"
    answer = connect(args).request("POST", path, seconds=_PATIENCE)
    if answer.status == 422:
        raise UserError(answer.message)
    one = answer.good["observed"]
    if args.verb == "accept":
        print(f"accepted: {one['target_revision']} at {args.name}")
    else:
        print(f"{args.name} will be asked; `specd observe show {args.name}` tells what came of it")
    return 0


def _observed(args: Arguments) -> list[dict[str, Any]]:
    found = connect(args).look("/admin/v1/observed").get("observed")
    if not isinstance(found, list):
        raise DaemonError("the daemon's answer has no list of engines")
    return found
