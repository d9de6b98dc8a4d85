"""`specd alerts`: what is open, a test of the way to the receivers, silences."""

import json
import os
import sys
from collections.abc import Iterable
from typing import Any, Final

from specd.alerts.silences import new_silence, parse_duration
from specd.cli.admin import Answer, add_admin_arguments, connect
from specd.cli.parser import Arguments, Parser, describe
from specd.cli.waiting import waiting
from specd.errors import UserError

_PATIENCE: Final = 10.0
_REFUSALS: Final = frozenset({400, 404, 422})


def add_arguments(parser: Parser) -> None:
    """Declare the subcommands."""
    describe(
        parser,
        "The alarm of the running daemon: what is open, who is told of it, and of what nobody is told for a time.",
        """
        specd alerts list
        specd alerts test                                   tell every receiver of an alert that is none
        specd alerts silence class=chat --for 2h --comment "retraining the head"
        specd alerts silence SpecdAcceptanceDrift,class=~code.* --for 30m
        specd alerts unsilence 3f9c2b7a51d0e846""",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _list(actions.add_parser("list", help="open alerts, those that ended lately, receivers, silences"))
    _test(actions.add_parser("test", help="send a test through the outbox to every receiver"))
    _silence(actions.add_parser("silence", help="tell nobody of the alerts that match, for a time"))
    _unsilence(actions.add_parser("unsilence", help="tell again"))
    for action in actions.choices.values():
        add_admin_arguments(action)


def run(args: Arguments) -> int:
    """Do what was asked."""
    code: int = args.action(args)
    return code


def _list(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="the admin API's answers as they are")
    parser.set_defaults(action=_show)


def _test(parser: Parser) -> None:
    parser.add_argument(
        "--wait",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="for the outcomes, at most 60 (default: 10)",
    )
    parser.exits["1"] = "a receiver has not taken it, or a fault of ours"
    parser.set_defaults(action=_try)


def _silence(parser: Parser) -> None:
    parser.add_argument(
        "matchers",
        nargs="+",
        metavar="MATCH",
        help="label=value, !=, =~ or !~ with an expression, or an alert's name; all must hold, commas join them",
    )
    parser.add_argument("--for", dest="duration", required=True, metavar="TIME", help="90s, 30m, 2h, 1d")
    parser.add_argument("--comment", default="", help="why, for others")
    parser.set_defaults(action=_mute)


def _unsilence(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="as `specd alerts list` shows it")
    parser.set_defaults(action=_unmute)


def _show(args: Arguments) -> int:
    admin = connect(args)
    found = {
        **_good(admin.request("GET", "/admin/v1/alerts", seconds=_PATIENCE)),
        **_good(admin.request("GET", "/admin/v1/silences", seconds=_PATIENCE)),
    }
    print(json.dumps(found, indent=2) if args.json else "\n".join(_page(found)))
    return 0


def _try(args: Arguments) -> int:
    """Exit 1 where a receiver has not taken it."""
    with waiting("a test is on its way to every receiver"):
        answer = connect(args).request(
            "POST",
            "/admin/v1/alerts/test",
            seconds=args.wait + _PATIENCE,
            body={"wait_seconds": args.wait},
        )
    outcomes: dict[str, str] = _good(answer)["receivers"]
    if not outcomes:
        raise UserError("no receiver is configured: add [[alerts.receivers]] to the config, and reload")
    for name, outcome in outcomes.items():
        print(f"{name}  {outcome}")
    return 0 if set(outcomes.values()) == {"delivered"} else 1


def _mute(args: Arguments) -> int:
    new_silence(args.matchers, parse_duration(args.duration), 0.0)  # a mistake is said without a daemon too
    body = {
        "matchers": args.matchers,
        "for": args.duration,
        "comment": args.comment,
        "created_by": os.environ.get("USER", ""),
    }
    answer = connect(args).request("POST", "/admin/v1/silences", seconds=_PATIENCE, body=body)
    silence = _good(answer)
    print(f"{silence['id']}  until {silence['endsAt']}")
    return 0


def _unmute(args: Arguments) -> int:
    path = f"/admin/v1/silences?id={args.id}"
    _good(connect(args).request("DELETE", path, seconds=_PATIENCE))
    print(f"{args.id}  deleted")
    return 0


def _good(answer: Answer) -> dict[str, Any]:
    if answer.status in _REFUSALS:
        raise UserError(answer.message)
    if answer.status >= 300:
        print(f"the daemon failed: {answer.message}", file=sys.stderr)
        raise SystemExit(1)
    return answer.body


def _page(found: dict[str, Any]) -> Iterable[str]:
    if not found["alerts"]:
        yield "no alerts"
    for alert in found["alerts"]:
        muted = f"  ({alert['muted']})" if alert["muted"] else ""
        yield f"{alert['state']:<8}  {alert['startsAt']}  {alert['annotations'].get('summary', alert['name'])}{muted}"
    for one in found["receivers"]:
        how = f"failing: {one['error']}" if one["failing"] else "fine"
        yield f"receiver  {one['name']} ({one['kind']}): {how}, {one['pending']} waiting"
    for silence in found["silences"]:
        if silence["state"] == "active":
            what = f"{silence['id']}  {', '.join(silence['matchers'])}  until {silence['endsAt']}"
            yield f"silence   {what}  {silence['comment']}".rstrip()
    if found["store"]["fault"]:
        yield f"store     in memory only: {found['store']['fault']}"
