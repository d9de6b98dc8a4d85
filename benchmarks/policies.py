"""The adaptive policy against every static draft length, on the demo model with the drafts that it gets by default.

Regret at each concurrency and mix; a day that ramps up and down while chats become copies; a draft that cannot win; and
what deciding costs. No cap by load, no prefix cache. Writes benchmarks/results/policies.json, policies.md and
policies.png, or those of another --name; what was measured so far is in policies.partial.jsonl meanwhile, from which
--resume goes on.
"""

import argparse
import gc
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

import torch
from rich.console import Console

from benchmarks import day, poor, price, regret
from benchmarks.bar import Bar
from benchmarks.journal import Journal
from benchmarks.paper import write
from benchmarks.policies_page import PolicyFigures, plot
from benchmarks.price import Control, Deciding
from benchmarks.rivals import Rivals, automatic, engine
from benchmarks.steady import of_mix
from specd.models.resolve import resolve_target

_RESULTS: Final = Path(__file__).parent / "results"
_PARTS: Final = ("regret", "day", "poor", "price")
_POINTS: Final = (1, 2, 4, 8, 16, 32, 48)
_MIXES: Final = ("copy", "chat", "mixed")
_DECISIONS: Final = 200  # of which the median is taken
_STEPS: Final = 60
_SMALL: Final = 3e3  # weight of what takes little time


def main() -> int:
    """Measure, print, write."""
    args = _arguments()
    asked = {name: getattr(args, name) for name in ("repeats", "tokens", "points", "mixes", "only", "quick")}
    try:
        journal = Journal(args.out / f"{args.name}.partial.jsonl", asked, resume=args.resume)
    except ValueError as fault:
        print(fault, file=sys.stderr)  # noqa: T201  the answer of a command
        return 2
    figures = _Measurement(args, journal).figures()
    page = figures.page()
    Console().print("\n".join(page), soft_wrap=True)
    if figures.points or figures.day is not None:
        plot(figures, args.out / f"{args.name}.png")
        page += [f"![]({args.name}.png)", ""]
    write(args.out, args.name, _command(args), figures.document(), page, title="policies")
    journal.finish()
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policies", description=__doc__)
    option = parser.add_argument
    option("--repeats", type=int, default=1, help="rounds of everything (default 1)")
    option("--tokens", type=int, default=64, help="tokens of each request that are measured (default 64)")
    option("--points", type=_numbers, default=_POINTS, help="concurrencies (default 1,2,4,8,16,32,48)")
    option("--mixes", type=_names, default=_MIXES, help="mixes of `specd bench` (default copy,chat,mixed)")
    option("--only", type=_names, default=_PARTS, help=f"some of {','.join(_PARTS)} (default: all)")
    option("--quick", action="store_true", help="two concurrencies, a short day, one round: does it run?")
    option("--resume", action="store_true", help="go on from what a run with the same options left behind")
    option(
        "--name",
        default="policies",
        help="of the page: a run of some parts is to leave that of a whole one alone",
    )
    option("--out", type=Path, default=_RESULTS, help="folder of the results")
    args = parser.parse_args()
    if unknown := set(args.only) - set(_PARTS):
        parser.error(f"--only {', '.join(unknown)}: there are {', '.join(_PARTS)}")
    if args.quick:
        args.repeats, args.tokens, args.points, args.mixes = 1, 4, (1, 2), ("mixed",)
    return args


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _command(args: argparse.Namespace) -> str:
    given = [
        f"--repeats {args.repeats}",
        f"--tokens {args.tokens}",
        f"--points {','.join(map(str, args.points))}",
    ]
    given += [f"--mixes {','.join(args.mixes)}", f"--only {','.join(args.only)}", f"--name {args.name}"]
    return f"python -m benchmarks.policies {'--quick' if args.quick else ' '.join(given)}"


class _Measurement:
    """The parts that are asked for, one after another on one engine, but for the poor draft, which has its own."""

    def __init__(self, args: argparse.Namespace, journal: Journal) -> None:
        self._args = args
        self._path = resolve_target("demo")
        self._plan = regret.Plan(
            args.points, args.mixes, args.repeats, args.tokens, {} if args.quick else regret.BATCHES
        )
        self._clients = (1, 2, 1) if args.quick else day.CLIENTS
        self._day = day.phases(self._path, self._clients) if "day" in args.only else []
        self._day_tokens = 4 * args.tokens  # prompts count as well, and are to be no more than a part of it
        self._bar = Bar(self._weight(), journal)

    def figures(self) -> PolicyFigures:
        """All of them."""
        wanted = self._args.only
        with self._bar as bar:
            rivals = Rivals(engine(self._path, automatic(self._path)))
            gc.freeze()  # as the engine process does
            most = max(map(self._plan.requests, self._plan.points))
            prompts = {mix: of_mix(self._path, mix, most) for mix in self._plan.mixes}
            points = regret.Regret(rivals, prompts, self._plan, bar).measure() if "regret" in wanted else []
            of_day = (
                day.day(rivals, self._day, self._day_tokens, self._plan.repeats, bar)
                if "day" in wanted
                else None
            )
            prices, control = self._prices(rivals) if "price" in wanted else ({}, None)
            del rivals
            return PolicyFigures(points, of_day, self._poor() if "poor" in wanted else [], prices, control)

    def _weight(self) -> float:
        parts = {
            "regret": self._plan.total,
            "day": day.total_weight(self._day, self._day_tokens, self._plan.repeats),
            "poor": poor.total_weight(self._poor_tokens, self._poor_repeats, self._poor_running),
            "price": _SMALL * (2 * len(price.SEQUENCES) + 1),
        }
        return sum(parts[name] for name in self._args.only)

    @property
    def _poor_tokens(self) -> int:
        return 2 * self._plan.tokens  # a hundredth is to be seen

    @property
    def _poor_repeats(self) -> int:
        return 2 * self._plan.repeats - 1

    @property
    def _poor_running(self) -> tuple[int, ...]:
        return poor.RUNNING[:1] if self._args.quick else poor.RUNNING

    def _poor(self) -> list[poor.Poor]:
        gc.collect()
        with tempfile.TemporaryDirectory() as folder:
            draft = poor.shuffled(automatic(self._path), Path(folder) / "head")
            rivals = Rivals(engine(self._path, draft))
            prompts = of_mix(self._path, "creative", poor.MOST)
            return poor.PoorDraft(
                rivals, prompts, self._poor_tokens, self._poor_repeats, self._poor_running, self._bar
            ).measure()

    def _prices(self, rivals: Rivals) -> tuple[dict[tuple[int, int], Deciding], Control]:
        repeats = 5 if self._args.quick else _DECISIONS
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        policy = rivals.policy("adaptive")
        prices = {
            (n, options): Deciding(
                *self._bar.measured(
                    f"price, {n} sequences, options {options}",
                    _SMALL,
                    partial(price.decide_seconds, n, options, repeats),
                )
            )
            for options in (1, len(price.OPTIONS))
            for n in (price.SEQUENCES[:2] if self._args.quick else price.SEQUENCES)
        }
        torch.set_num_threads(threads)
        batch = of_mix(self._path, "mixed", 2 if self._args.quick else price.RUNNING)
        steps = 5 if self._args.quick else _STEPS
        shares = lambda: asdict(price.control(rivals, policy, batch, steps))  # noqa: E731
        return prices, Control(**self._bar.measured("price, control in a step", _SMALL, shares))


if __name__ == "__main__":
    sys.exit(main())
