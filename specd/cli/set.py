"""`specd set`: change keys of the running daemon until its next reload."""

import tomllib
from typing import Any

from specd.cli.admin import add_admin_arguments, connect
from specd.cli.parser import Arguments, Parser, describe
from specd.cli.reload import report
from specd.cli.waiting import waiting
from specd.errors import UserError


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    describe(
        parser,
        """
Set hot keys of the running daemon. They hold until its next reload or restart: what is to stay belongs in
the config. All are taken over, or none; a refusal exits 2 and says why.""",
        """
        specd set policy.k_max=4
        specd set policy.kind=off alerts.rules=[]""",
    )
    add_admin_arguments(parser)
    parser.add_argument(
        "values", nargs="+", metavar="KEY=VALUE", help="the value as in TOML; text needs no quotes"
    )


def run(args: Arguments) -> int:
    """Ask, and print each change, however long it takes: a key of the target has another one loaded."""
    values = dict(map(_pair, args.values))
    with waiting("the daemon takes it over"):
        answer = connect(args).request("PATCH", "/admin/v1/config", seconds=None, body=values)
    if answer.status in {400, 409, 422}:
        raise UserError(answer.message)
    report(answer.good, done="set", detailed=True)
    return 0


def _pair(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise UserError(f"{text} is no KEY=VALUE: write, for example, policy.k_max=4")
    return key.strip(), _value(value)


def _value(text: str) -> Any:
    """What TOML makes of it; what is no TOML is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
