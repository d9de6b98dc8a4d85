"""`specd simulate`: a trace of requests, played against policies side by side."""

import json
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from policies.simulate import DEFAULT, Acceptance, Outcome, Trace, Traits
from specd.cli.parser import INTERRUPTED, Arguments, Parser, describe
from specd.cli.values import count, require_writable
from specd.simulate import plot
from specd.simulate.field import Field, everyone
from specd.simulate.machines import BUILTIN, machine
from specd.simulate.reading import read_trace
from specd.simulate.report import decisions, document, table

_TABLE_WIDTH: Final = 112  # in less, digits would be cut off; a narrow terminal wraps the lines instead
_REPEATED: Final = (
    *("rate", "at_once", "machines", "limit", "repeat_to", "max_running"),
    *("k_max", "switch_every", "drift", "noise", "seed"),
)
"""Options that are told with the result as they are."""

_TEXT: Final = """
Play a trace of requests against policies, side by side, without a model: step by step as the engine does it, with
continuous batching and prompts in chunks beside what decodes. Each policy meets the same requests and the same texts.

  FILE        CSV whose header names TIMESTAMP, ContextTokens, GeneratedTokens and perhaps class (the traces that
              Azure publishes are read as they are), or JSON lines such as
              {"t": 0.5, "context": 900, "generated": 120, "class": "chat"}
  costs       what a step takes: "host" is the demo model on two cores, "gpu" is made up after 8 B parameters on a
              large accelerator; or a file
  acceptance  of each request, drawn from what its class has: mean of the first position, spread over requests, and
              by how much it falls from position to position
  policies    adaptive is the daemon's own controller; table goes by the number running, and is told the mean
              acceptance; static-K drafts K tokens for all; off drafts none

A machine that is not full serves as many tokens a second by any policy: those that are asked for. There the times tell
more. They are per token (mean) and between two arrivals of text (p99), since the tokens of a round arrive together.
"""


def add_arguments(parser: Parser) -> None:
    """Declare the options of `specd simulate`."""
    describe(
        parser,
        _TEXT,
        """
        specd simulate azure_llm_conv.csv --profile gpu --machines 4
        specd simulate trace.jsonl --rate 2 --acceptance code=0.7 --acceptance chat=0.5:0.2:0.9
        specd simulate trace.csv --at-once --policy adaptive,static-3,off --noise 0.3 --switch-every 200
        """,
        exits=INTERRUPTED,
    )
    option = parser.add_argument
    option("file", type=Path, metavar="FILE", help="the trace")
    option(
        "--profile",
        default="gpu",
        metavar="NAME",
        help=f"{', '.join(BUILTIN)} or a file (default: %(default)s)",
    )
    option(
        "--policy",
        type=_names,
        metavar="A,B",
        help="what to compare (default: adaptive, table, each static k, off)",
    )
    option("--k-max", type=count, default=8, metavar="K", help="longest draft (default: %(default)s)")
    option("--rate", type=_positive, default=1.0, metavar="X", help="requests come so many times as fast")
    option("--at-once", action="store_true", help="requests are all there at the start")
    option("--machines", type=count, default=1, metavar="N", help="deal requests to N machines, simulate one")
    option("--limit", type=count, metavar="N", help="only the first N requests")
    option("--repeat-to", type=count, metavar="N", help="the trace over and over, up to N requests")
    option("--max-running", type=count, metavar="N", help="requests at a time (default: the profile's)")
    option(
        "--acceptance",
        type=_traits,
        action="append",
        default=[],
        metavar="[CLASS=]MEAN[:SPREAD[:FALL]]",
        help="of a class, or of all that are not named (default: 0.55:0.15:0.95)",
    )
    option(
        "--switch-every",
        type=_whole,
        default=0,
        metavar="N",
        help="draw a text's acceptance anew every N tokens",
    )
    option(
        "--drift",
        type=_share,
        default=0.0,
        metavar="X",
        help="all acceptance goes up and down by X in an hour",
    )
    option(
        "--noise",
        type=_share,
        default=0.0,
        metavar="X",
        help="steps take up to X more or less, and the costs that adaptive policies begin with are as wrong",
    )
    option("--seed", type=int, default=0, help="of texts and noise (default: %(default)s)")
    option("--json", type=Path, metavar="FILE", help="write the result as JSON")
    option("--plot", type=Path, metavar="FILE.png", help="write the result as a picture")


def run(args: Arguments) -> int:
    """Simulate, print, write."""
    require_writable(args.json, args.plot)
    field = _field(args)
    names = args.policy or everyone(args.k_max)
    for name in names:
        field.contender(name)  # a wrong name is told before the minutes, not after
    with _progress(len(names), len(field.trace)) as tell:
        outcomes = [field.play(name, partial(tell, name, place)) for place, name in enumerate(names)]
    _publish(args, field, outcomes)
    return 0


def _field(args: Arguments) -> Field:
    named = {name: traits for name, traits in args.acceptance if name}
    unnamed = [traits for name, traits in args.acceptance if not name]
    return Field(
        trace=_trace(args),
        machine=machine(args.profile, args.max_running),
        acceptance=Acceptance(named, (unnamed or [DEFAULT])[-1], args.switch_every, args.drift),
        k_max=args.k_max,
        noise=args.noise,
        seed=args.seed,
    )


def _trace(args: Arguments) -> Trace:
    trace = read_trace(args.file)
    if args.repeat_to:
        trace = trace.repeated(args.repeat_to)
    trace = trace.share(args.machines).faster(args.rate)
    if args.limit:
        trace = trace.first(args.limit)
    return trace.at_once() if args.at_once else trace


def _publish(args: Arguments, field: Field, outcomes: Sequence[Outcome]) -> None:
    console = Console(width=max(Console().width, _TABLE_WIDTH))
    console.print(field.words(), highlight=False, soft_wrap=True)
    console.print(table(outcomes), decisions(outcomes))
    if args.json:
        args.json.write_text(json.dumps(document(_command(args), field, outcomes), indent=2) + "\n", "utf-8")
    if args.plot:
        plot.plot(outcomes, args.plot)


def _command(args: Arguments) -> str:
    """The command line that asks the same again, without the folders of its files."""
    words = ["specd simulate", args.file.name, "--profile", Path(args.profile).name]
    for name in _REPEATED:
        if value := getattr(args, name):
            words += [f"--{name.replace('_', '-')}", "" if value is True else str(value)]
    words += ["--policy", ",".join(args.policy)] if args.policy else []
    for name, traits in args.acceptance:
        prefix = f"{name}=" if name else ""
        words += ["--acceptance", f"{prefix}{traits.first}:{traits.spread}:{traits.fall}"]
    return " ".join(filter(None, words))


@contextmanager
def _progress(policies: int, requests: int) -> Iterator[Callable[[str, int, int], None]]:
    """A bar over all policies, on stderr, that names the one at work."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("reading", total=policies * requests)

        def tell(policy: str, place: int, ended: int) -> None:
            progress.update(task, description=policy, completed=place * requests + ended)

        yield tell


def _whole(text: str) -> int:
    return 0 if text == "0" else count(text)


def _positive(text: str) -> float:
    value = _number(text)
    if not 0 < value < inf:
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _share(text: str) -> float:
    value = _number(text)
    if not 0 <= value < 1:
        raise ArgumentTypeError(f"{text!r} is not a number from 0 to less than 1")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number") from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _traits(text: str) -> tuple[str, Traits]:
    """([class], traits)."""
    name, _, numbers = text.rpartition("=")
    values = [_share(number) for number in numbers.split(":")]
    if len(values) > 3:
        raise ArgumentTypeError(f"{text!r} has more than mean, spread and fall, such as chat=0.5:0.2:0.9")
    return name.strip(), Traits(*values)
