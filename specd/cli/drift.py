"""`specd drift`: what acceptance is compared with, and a new level accepted by hand."""

from typing import Any, Final

from specd.cli.admin import add_admin_arguments, connect
from specd.cli.parser import Arguments, Parser, describe
from specd.errors import UserError

_PATIENCE: Final = 30.0
_TEMPERATURES: Final = ("greedy", "low", "medium", "high")


def add_arguments(parser: Parser) -> None:
    """Declare the subcommands."""
    describe(
        parser,
        """
What acceptance of each class, temperature and proposer was and is. Where it has left its baseline and is meant to be
so, `accept` ends the alert; what comes from then on is learned as the new baseline.""",
        """
        specd drift show
        specd drift accept --class chat
        specd drift accept --class chat --proposer eagle""",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    show = actions.add_parser("show", help="every class, temperature and proposer, with its baseline")
    show.set_defaults(action=_show)
    accept = actions.add_parser("accept", help="what it is now is meant to be so")
    accept.add_argument("--class", dest="traffic_class", metavar="CLASS", help="of this class alone")
    accept.add_argument("--temperature", choices=_TEMPERATURES, help="of these temperatures alone")
    accept.add_argument("--proposer", metavar="NAME", help="drafted by this one alone")
    accept.set_defaults(action=_accept)
    for action in (show, accept):
        add_admin_arguments(action)


def run(args: Arguments) -> int:
    """Do what was asked."""
    code: int = args.action(args)
    return code


def _show(args: Arguments) -> int:
    strata = connect(args).look("/admin/v1/status")["drift"]
    for one in strata:
        was = f"was {_rate(one['baseline'])} of {one['requests']:.0f} requests"
        print(", ".join([f"{_who(one)}: {was}", f"is {_rate(one['now'])}", *one["wrong"]]))
    if not strata:
        print("nothing was drafted yet")
    return 0


def _accept(args: Arguments) -> int:
    wanted = {"class": args.traffic_class, "temperature": args.temperature, "proposer": args.proposer}
    body = {name: value for name, value in wanted.items() if value is not None}
    answer = connect(args).request("POST", "/admin/v1/drift/accept", seconds=_PATIENCE, body=body)
    if answer.status == 422:
        raise UserError(answer.message)
    for one in answer.good["accepted"]:
        print(f"accepted: {_who(one)}")
    return 0


def _who(stratum: dict[str, Any]) -> str:
    return f"{stratum['traffic_class']} ({stratum['temperature']}), {stratum['proposer']}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
