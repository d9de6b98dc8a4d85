"""`specd status`: one look at the running daemon."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from specd.alerts.events import utc
from specd.cli import shown
from specd.cli.admin import Admin, add_admin_arguments, connect
from specd.cli.parser import Arguments, Parser, describe
from specd.config.paths import leaves

_NAMES: Final = 16  # columns: "65 and more" requests have the longest


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    describe(
        parser,
        "One look at the running daemon: does it serve, what, how well, and what is wrong.",
        """
        specd status
        specd status --all                      every figure, one a line
        specd status --json | jq .""",
    )
    add_admin_arguments(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--all", action="store_true", help="every figure by its name, one a line")
    how.add_argument("--json", action="store_true", help="the admin API's answer as it is")


def run(args: Arguments) -> int:
    """Ask and print."""
    admin = connect(args)
    body = admin.look("/admin/v1/status")
    if args.json:
        print(json.dumps(body, indent=2))
    elif args.all:
        print(table(body))
    else:
        _summarise(admin, body)
    return 0


def table(body: Mapping[str, Any]) -> str:
    """Nested values as aligned lines: `engine.state   ready`."""
    rows = [(".".join(at), value) for at, value in leaves(body)]
    width = max((len(key) for key, _ in rows), default=0)
    return "\n".join(f"{key:<{width}}  {_cell(value)}" for key, value in rows)


def _cell(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _summarise(admin: Admin, status: shown.Status) -> None:
    """Whatever is wrong with it, a daemon of another version, with other figures, is shown as it is."""
    console = Console(highlight=False)
    try:
        count = sum(status["alerts"].values())
        alerts = admin.look("/admin/v1/alerts")["alerts"] if count else []
        facts = (
            line
            for name, value in _facts(status, alerts)
            for line in shown.hung(console, Text(name, "dim"), value, _NAMES)
        )
        parts = [*shown.head(status), Text(), *facts, Text(), *shown.strata(status["drift"])]
    except KeyError:
        print(table(status))
    else:
        console.print(*parts, sep="\n")


def _facts(status: shown.Status, alerts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Text | str]]:
    yield "load", shown.load(status)
    yield "k", _k(status["drafts"])
    for arm in status["drafts"]["goodput"]:
        drafting, plain = shown.rate(arm["drafting"]), shown.rate(arm["plain"])
        yield f"{arm['running']} at once", f"{drafting} tokens/s with drafts, {plain} without"
    yield "alerts", shown.alerts(status["alerts"])
    for alert in alerts:
        if alert["state"] in {"firing", "pending"}:
            said = alert["annotations"].get("summary", "")
            muted = f" ({alert['muted']})" if alert["muted"] else ""
            yield "", Text(f"{alert['name']}: {said}{muted}", shown.BAD)
    for one in status.get("observed", ()):
        yield "observed", shown.observed(one)
    yield "engine", _engine(status["engine"])
    if crash := status["engine"].get("last_crash"):
        yield "crash", f"{crash['id']}: {crash['text']}, at {crash['time']}; `specd crashes show` tells more"
    yield "config", _config(status["config"])
    yield "mqtt", _mqtt(status["mqtt"])


def _k(drafts: Mapping[str, Any]) -> str:
    counts = shown.lengths(drafts["k"])
    rounds = sum(counts.values())
    if not rounds:
        return "no rounds yet"
    mean = sum(k * times for k, times in counts.items()) / rounds
    return f"{mean:.1f} on average of the last {rounds} rounds: {shown.reasons(drafts['reasons'])}"


def _engine(engine: Mapping[str, Any]) -> str:
    died = f"; last death: {engine['last_death']}" if engine["last_death"] else ""
    return f"{engine['state']}, {engine['restarts']} restarts{died}"


def _config(config: Mapping[str, Any]) -> Text:
    last = config["last_reload"]
    text = f"{config['hash']}, last reload {last['result']} ({last['trigger']}) at {utc(last['unix_time'])}"
    if config["pending_restart"]:
        text += f"; waiting for a restart: {', '.join(config['pending_restart'])}"
    return Text(
        text if last["error"] is None else f"{text}: {last['error']}", shown.BAD if last["error"] else ""
    )


def _mqtt(mqtt: Mapping[str, Any]) -> Text:
    if mqtt["broker"] is None:
        return Text("not configured")
    trouble = mqtt["trouble"] or ", ".join(f"{topic} is denied" for topic in mqtt["denied_topics"])
    if mqtt["connected"] and not trouble:
        return Text(f"{mqtt['node']} at {mqtt['broker']}", shown.GOOD)
    return Text(f"{mqtt['broker']}: {trouble or 'not connected'}", shown.BAD)
