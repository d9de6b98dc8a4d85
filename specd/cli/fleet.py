"""`specd fleet`: how all nodes at an MQTT broker stand. It asks the broker, and needs no daemon here."""

import asyncio
import json
import time
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from specd.cli import shown
from specd.cli.configured import load_config
from specd.cli.parser import Arguments, Parser, add_config_arguments, describe
from specd.cli.values import number
from specd.cli.waiting import waiting
from specd.errors import UserError
from specd.fleet import screen
from specd.fleet.listening import Listening
from specd.fleet.overview import complete
from specd.mqtt.settings import Settings, read_settings

_PATIENCE: Final = 600.0
_LATE: Final = 1


def add_arguments(parser: Parser) -> None:
    """Declare the subcommands."""
    describe(
        parser,
        """
How all nodes stand that publish below mqtt.prefix at the broker of the config: revisions, acceptance, draft
length, load, alerts, and who has not taken an update. It listens and says nothing; no daemon has to run here.""",
        """
        specd fleet status
        specd fleet status --json | jq '.nodes[] | select(.taken == false).node'
        specd fleet status --wait                       until every node that is online has taken the last update
        specd fleet status --wait 120 --revision june   the same of a revision by name, for two minutes at most""",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    status = actions.add_parser("status", help="one look, or --wait for an update to have reached everybody")
    status.add_argument("--json", action="store_true", help="everything that the nodes tell")
    status.add_argument(
        "--wait",
        type=number(float, 0, 86400, "seconds"),
        nargs="?",
        const=_PATIENCE,
        metavar="SECONDS",
        help=f"until each node that is online serves what it should; exit 1 after so long (default: {_PATIENCE:.0f})",
    )
    status.add_argument(
        "--revision",
        metavar="R",
        help="the target revision that all should serve (default: what the last update brought)",
    )
    status.exits["1"] = "after --wait: a node does not serve what it should"
    add_config_arguments(status)


def run(args: Arguments) -> int:
    """Listen and print."""
    settings = _broker(args)
    what = "waiting for every node that is online to serve what it should"
    if args.wait is None:
        fleet = asyncio.run(Listening(settings, args.revision).run(lambda _: True, 0.0))
    else:
        with waiting(what):
            fleet = asyncio.run(Listening(settings, args.revision).run(complete, args.wait))
    if args.json:
        print(json.dumps(fleet, indent=2))
    else:
        _show(fleet)
    return 0 if args.wait is None or complete(fleet) else _LATE


def _broker(args: Arguments) -> Settings:
    settings = read_settings(load_config(args).config.mqtt, "fleet")
    if settings is None:
        raise UserError(
            "no broker is configured, and the fleet is asked there: set mqtt.url, or name the config of a node with -c"
        )
    return settings


def _show(fleet: dict[str, Any]) -> None:
    console, now = Console(highlight=False), time.time()
    if not fleet["nodes"]:
        print(
            f"no node has said anything below {fleet['prefix']}/ at {fleet['broker']}: do daemons have this broker as"
            " mqtt.url, and the same mqtt.prefix?"
        )
        return
    console.print(*screen.head(fleet), Text(), *screen.table(fleet, now), sep="\n")
    for title, rows in screen.details(fleet):
        console.print()
        console.print(Text(title, shown.TITLE))
        width = max(len(name) for name, _ in rows) + 2
        lines = (line for name, text in rows for line in shown.hung(console, Text(name), text, width))
        console.print(*lines, sep="\n")
