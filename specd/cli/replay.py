"""`specd replay`: drift detectors and alert rules over recorded request reports."""

import json
import time
from pathlib import Path

from specd.alerts.silences import new_silence
from specd.cli.configured import load_config
from specd.cli.parser import Arguments, Parser, add_config_arguments, describe
from specd.replay import Replay, read_reports


def add_arguments(parser: Parser) -> None:
    """Declare the arguments."""
    describe(
        parser,
        """
Put recorded request reports before the drift detectors and the alert rules of a config, and print each alert that fires
or ends as a JSON line: what the daemon would have told, had it been configured so. Baselines are learned from the
file, silences in force from its first record to its last. Reports are what the daemon writes to
telemetry.reports_file.""",
        """
        specd replay reports.jsonl --now-from-record
        specd replay reports.jsonl -c specd.toml --set drift.min_drop=0.1
        specd replay reports.jsonl --silence class=batch""",
    )
    parser.add_argument("file", type=Path, metavar="FILE.jsonl", help="request reports, a JSON object a line")
    parser.add_argument(
        "--now-from-record",
        action="store_true",
        help="alerts have the times of the records; without it, those that they would have if the file ended now",
    )
    parser.add_argument(
        "--silence",
        action="append",
        default=[],
        metavar="MATCH",
        help="leave out alerts that match, as `specd alerts silence` writes it; may be repeated",
    )
    add_config_arguments(parser)


def run(args: Arguments) -> int:
    """Print a line per change."""
    config = load_config(args).config
    records = read_reports(args.file)
    first, last = min(record.t for record in records), max(record.t for record in records)
    shift = 0.0 if args.now_from_record else time.time() - last
    silences = [new_silence([text], last - first + 1.0, first) for text in args.silence]
    for line in Replay(config, silences).run(records, shift):
        print(json.dumps(line))
    return 0
