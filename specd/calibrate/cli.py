"""`specd calibrate`: what speculation is worth on this host, by load, and the profile that says so."""

import asyncio
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from policies.cost import StepCosts
from policies.profile import Profile, concluded
from policies.settings import PolicySettings
from specd.bench.prompts import MIXES
from specd.calibrate import plot
from specd.calibrate.report import summary, table
from specd.calibrate.rig import Rig, RigError, prompts_first, rig
from specd.calibrate.sweep import Plan, Results, Texts, Try, policy_of, tries
from specd.cli.configured import load_config
from specd.cli.parser import CACHE, INTERRUPTED, Arguments, Parser, add_config_arguments, describe
from specd.cli.values import counts, number, require_writable
from specd.config.schema import Config
from specd.errors import UserError
from specd.http.prompt import PromptEncoder
from specd.launching import launch_of
from specd.models.cache import hashes
from specd.models.drafts import Drafts, find_drafts
from specd.models.profile import subject_of, write_profile
from specd.models.resolve import resolve_target
from specd.store import heads_dir

ENGINE: Final = (sys.executable, "-m", "engine.worker")

_RUNNING: Final = (1, 2, 4, 8, 16, 32, 48)
_QUICK_RUNNING: Final = (1, 4, 16, 48)
_LONG_RUNNING: Final = (2, 16)
_LENGTHS: Final = (1, 3)
_QUICK_LENGTH: Final = 2


def add_arguments(parser: Parser) -> None:
    """Declare the options of `specd calibrate`."""
    describe(
        parser,
        """
Measures what speculation is worth on this host, for the models of the config: texts of a mix are written together, 1
to engine.max_running of them, with drafts of several lengths and without, in turns. Found are what steps cost, the
crossover (as many running as make drafts cost more than they bring), and a load table that ends below it by a margin.
Written is a profile for `policy.profile`, which holds for this host, these models and their number format, and is
refused for others. It starts an engine of its own: stop the daemon first, and leave the machine alone meanwhile. About
five minutes for the demo model.""",
        """
        specd calibrate
        specd calibrate -c specd.toml --out /var/lib/specd/profile.json --plot profile.png
        specd calibrate --quick --mix chat""",
        files=CACHE,
        exits=INTERRUPTED,
    )
    add_config_arguments(parser)
    option = parser.add_argument
    option(
        "--out", type=Path, default=Path("specd-profile.json"), metavar="FILE", help="default: %(default)s"
    )
    option("--plot", type=Path, metavar="F.png", help="draw what was found")
    option("--quick", action="store_true", help="fewer loads and lengths, once each: about a minute")
    option("--mix", choices=MIXES, default="mixed", help="what is written; default: %(default)s")
    option(
        "--running",
        type=counts,
        metavar="1,2,…",
        help="how many texts together, the last at most max_running",
    )
    option(
        "--seconds",
        type=number(float, 0, 600),
        default=1.5,
        metavar="S",
        help="of each try; default %(default)g",
    )
    option(
        "--margin",
        type=number(float, 0, 1),
        default=0.05,
        metavar="M",
        help="what a draft must gain; default %(default)g",
    )


def run(args: Arguments) -> int:
    """Measure, print, and write."""
    config = load_config(args).config
    if config.engine.backend != "specd":
        raise UserError(
            f'engine.backend = "{config.engine.backend}": `specd calibrate` measures specd\'s own engine; with vLLM '
            "costs are learned as it serves"
        )
    require_writable(args.out, args.plot)
    _require_alone(config.admin.listen)
    path = resolve_target(config.model.target.path)
    drafts = find_drafts(config.model.draft, path, hashes(), trained=heads_dir(config.store))
    if not drafts.proposers:
        raise UserError('model.draft.kind = "none": there is no draft to calibrate')
    plan = _plan(args, config)
    try:
        results, costs = asyncio.run(_measure(config, path, drafts, plan))
    except RigError as fault:
        sys.stderr.write(f"{fault}; see its messages above\n")
        return 1
    profile = concluded(
        subject_of(config, path, drafts, hashes()),
        costs,
        results.points(long=False),
        results.points(long=True),
        made=datetime.now(UTC).date().isoformat(),
        mix=args.mix,
        margin=args.margin,
    )
    _publish(profile, args)
    return 0


def _plan(args: Arguments, config: Config) -> Plan:
    limit, k_max = config.engine.max_running, config.policy.k_max
    if k_max == 0:
        raise UserError("policy.k_max = 0: there is no draft to calibrate")
    running = args.running or (*(_QUICK_RUNNING if args.quick else _RUNNING), limit)
    lengths = {_QUICK_LENGTH, k_max} if args.quick else {*_LENGTHS, k_max}
    return Plan(
        mix=args.mix,
        running=tuple(sorted({count for count in running if count <= limit})),
        lengths=(0, *sorted(k for k in lengths if k <= k_max)),
        rounds=1 if args.quick else 2,
        seconds=args.seconds,
        long_running=() if args.quick or args.running else tuple(n for n in _LONG_RUNNING if n <= limit),
    )


async def _measure(config: Config, path: Path, drafts: Drafts, plan: Plan) -> tuple[Results, StepCosts]:
    """All tries, on an engine of our own."""
    settings = config.policy.settings()
    target, draft = config.model.target, drafts.settings(config.model.draft)
    launch = prompts_first(launch_of(config, target, path, draft, settings, costs=None))
    encoder = await asyncio.to_thread(PromptEncoder.load, path)
    results = Results()
    with _progress(plan) as (say, advance):
        async with rig(ENGINE, launch) as engine:
            texts = Texts(plan, encoder, await engine.ready(say))
            _require_room(texts, plan)
            await _warm_up(engine, texts, plan, say)
            for each in tries(plan):
                if texts.fits(each.running, long=each.long):
                    requests = texts.of(each)
                    results.add(
                        each, requests, await engine.write(requests, policy_of(settings, each.k), plan.enough)
                    )
                advance(each)
            say("what steps cost")
            return results, await engine.costs()


def _require_room(texts: Texts, plan: Plan) -> None:
    if not texts.fits(plan.running[0], long=False):
        raise UserError(
            f"engine.kv_mib holds no {plan.running[0]} texts of a calibration at once: raise it, or name fewer "
            "with --running"
        )


async def _warm_up(engine: Rig, texts: Texts, plan: Plan, say: Callable[[str], None]) -> None:
    """A try that does not count: whatever is made at first use is made then."""
    say("warm-up")
    first = Try(plan.running[0], plan.lengths[-1], plan.rounds, long=False)
    await engine.write(texts.of(first), policy_of(PolicySettings(), first.k), plan.enough)


@contextmanager
def _progress(plan: Plan) -> Iterator[tuple[Callable[[str], None], Callable[[Try], None]]]:
    """A bar over all tries, on stderr, with the time that is left: what is said, and what a try moves."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("loading", total=plan.tries)

        def say(text: str) -> None:
            progress.update(task, description=text)

        def advance(each: Try) -> None:
            draft = f"k = {each.k}" if each.k else "off"
            kind = "long texts" if each.long else "texts"
            progress.update(task, advance=1, description=f"{each.running} {kind}, {draft}")

        yield say, advance


def _publish(profile: Profile, args: Arguments) -> None:
    console = Console()
    console.print(table(profile))
    console.print(summary(profile), highlight=False, markup=False, soft_wrap=True)
    write_profile(profile, args.out)
    console.print(
        f'written to {args.out}; to have it used: policy.profile = "{args.out.absolute()}"',
        highlight=False,
        soft_wrap=True,
    )
    if args.plot:
        plot.plot(profile, args.plot)


def _require_alone(listen: str) -> None:
    """Raises UserError where the daemon of this config runs: two engines on one machine are both slow."""
    if _answers(listen):
        raise UserError(
            f"something answers at {listen} (admin.listen), so a daemon runs: its engine would compute beside the one "
            "that is to be measured. Stop it first"
        )


def _answers(listen: str) -> bool:
    unix = listen.removeprefix("unix:")
    host, _, port = listen.rpartition(":")
    with socket.socket(socket.AF_UNIX if unix != listen else socket.AF_INET) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(unix if unix != listen else (host or "127.0.0.1", int(port)))
        except (OSError, ValueError):
            return False
    return True
