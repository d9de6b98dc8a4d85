"""`specd status`: one look at the running daemon."""

import json

from specd.cli.admin import add_admin_arguments, connect
from specd.cli.parser import Arguments, Parser, describe
from specd.config.paths import leaves


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    describe(
        parser,
        "One look at the running daemon: engine, model, load state, acceptance, alerts.",
        """
        specd status
        specd status --json | jq .""",
    )
    add_admin_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the admin API's answer as it is")


def run(args: Arguments) -> int:
    """Ask and print."""
    body = connect(args).look("/admin/v1/status")
    print(json.dumps(body, indent=2) if args.json else table(body))
    return 0


def table(body: dict[str, object]) -> str:
    """Nested values as aligned lines: `engine.state   ready`."""
    rows = [(".".join(at), value) for at, value in leaves(body)]
    width = max((len(key) for key, _ in rows), default=0)
    return "\n".join(f"{key:<{width}}  {_cell(value)}" for key, value in rows)


def _cell(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
