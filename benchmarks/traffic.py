"""`make bench-traffic`: production traffic through the simulator, and policies that are told wrong costs.

Writes benchmarks/results/traffic.json, traffic.md and traffic.png. No model runs.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from math import ceil
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.claims import Claim
from benchmarks.paper import write
from benchmarks.traffic_cases import FULL, NOISE, SWITCH, Noisy, Row
from benchmarks.traffic_page import page, plot
from policies.simulate import Acceptance, Machine, Outcome, Trace, Traits
from specd.simulate.field import ADAPTIVE, OFF, STATIC, Field, everyone
from specd.simulate.machines import machine
from specd.simulate.reading import read_trace

_RESULTS: Final = Path(__file__).parent / "results"
_TRACES: Final = ("azure_llm_code", "azure_llm_conv")
_RATES: Final = (1, 2, 4)
_MEASURED_ONCE: Final = "host"  # the built-in costs
_SAMPLE: Final = 300  # requests by which it is found how much a machine bears
_K_MAX: Final = 8
_RUNNING: Final = (1, 4, 16, 48)
_NOISE_SEEDS: Final = (1, 2, 3)
_NOISE_TOKENS: Final = 12_000  # for each request that runs, about
_HURRY: Final = 10
_NOISE_PROMPT: Final = 64  # tokens: prompts cost all policies the same, and would hide what they differ in

ACCEPTANCE: Final = Acceptance(
    {"azure_llm_code": Traits(0.65, 0.2, 0.97), "azure_llm_conv": Traits(0.5, 0.15, 0.93)}
)
"""Made up, in the range of what an EAGLE-3 head has on code and on chats."""

_ALL: Final = everyone(_K_MAX)
_RIVALS: Final = (ADAPTIVE, *(f"{STATIC}{k}" for k in range(_K_MAX + 1)))
_PLAYS: Final = len(_ALL) * len(_TRACES) * 2 * len(_RATES) + len(_RIVALS) * 2 * len(_RUNNING) * len(
    _NOISE_SEEDS
)


class Bench:
    """What is simulated, and a bar for it."""

    def __init__(self, args: argparse.Namespace, progress: Progress) -> None:
        self._limit, self._noise_tokens = args.limit, _NOISE_TOKENS // (_HURRY if args.quick else 1)
        self._progress = progress
        self._task = progress.add_task("reading", total=_PLAYS)
        self._traces = {name: read_trace(args.data / f"{name}.csv") for name in _TRACES}
        self.machines = {"host": machine(args.host), "gpu": machine("gpu")}

    def rows(self) -> Iterator[Row]:
        """Production traffic, a row at a time."""
        for trace, name, rate in product(_TRACES, self.machines, _RATES):
            host = self.machines[name]
            count = _machines(self._traces[trace], host)
            dealt = self._traces[trace].share(count).first(self._limit)
            field = Field(dealt.faster(rate), host, ACCEPTANCE, _K_MAX)
            yield Row(trace, rate, name, count, self._play(field, _ALL, f"{trace} at {rate}x, {name}"))

    def noisy(self) -> Iterator[Noisy]:
        """Honesty under noise, a case at a time."""
        acceptance = replace(ACCEPTANCE, switch_every=SWITCH)
        for name, running, seed in product(self.machines, _RUNNING, _NOISE_SEEDS):
            trace = _answers(self._traces["azure_llm_conv"], running * self._noise_tokens)
            host = replace(self.machines[name], max_running=running)
            field = Field(trace, host, acceptance, _K_MAX, noise=NOISE, seed=seed)
            yield Noisy(name, running, seed, self._play(field, _RIVALS, f"noise, {running} running, {name}"))

    def _play(self, field: Field, names: Sequence[str], what: str) -> list[Outcome]:
        outcomes = []
        for name in names:
            self._progress.update(self._task, description=f"{what}: {name}")
            outcomes.append(field.play(name))
            self._progress.advance(self._task)
        return outcomes


def main() -> int:
    """Simulate, print, write."""
    args = _arguments()
    columns = (*Progress.get_default_columns()[:2], TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bench = Bench(args, progress)
        noisy = list(bench.noisy())
        rows: list[Row] = []
        for row in bench.rows():
            rows.append(row)
            _write(args, bench.machines, rows, noisy)  # what is there so far
    _print(rows, noisy)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-traffic", description=__doc__)
    option = parser.add_argument
    option("--data", type=Path, required=True, help="folder of azure_llm_code.csv and azure_llm_conv.csv")
    option(
        "--host",
        default=_MEASURED_ONCE,
        help="what `specd calibrate` wrote here (default: the built-in costs)",
    )
    option("--limit", type=int, default=1 << 30, help="requests of a machine at most (default: all)")
    option("--quick", action="store_true", help=f"a {_HURRY}th of the tokens under noise")
    option("--out", type=Path, default=_RESULTS, help="folder for the results")
    args = parser.parse_args()
    if missing := [name for name in _TRACES if not (args.data / f"{name}.csv").exists()]:
        parser.error(
            f"{args.data} has no {missing[0]}.csv: make bench-traffic DATA=folder of the Azure traces"
        )
    return args


def _machines(trace: Trace, host: Machine) -> int:
    """So many as keep each at most `FULL` at the trace's own rate, without drafts."""
    sample = trace.share(len(trace) // _SAMPLE).at_once()
    busy = Field(sample, host, ACCEPTANCE, _K_MAX).play(OFF).seconds / len(sample)
    return max(ceil(len(trace) * busy / trace.seconds / FULL), 1)


def _answers(trace: Trace, tokens: int) -> Trace:
    """The first answers of a trace, so many tokens in all, to short prompts, all asked for at once."""
    count = int(np.searchsorted(trace.generated.cumsum(), tokens)) + 1
    first = trace.repeated(max(count, 1)).at_once()
    return replace(first, context=np.full_like(first.context, _NOISE_PROMPT))


def _write(
    args: argparse.Namespace, machines: Mapping[str, Machine], rows: Sequence[Row], noisy: Sequence[Noisy]
) -> None:
    claims = _claims(rows, noisy)
    calibrated = ["--host PROFILE"] * (args.host != _MEASURED_ONCE)
    options = [*calibrated, *[f"--limit {args.limit}"] * (args.limit < 1 << 30), *["--quick"] * args.quick]
    command = "make bench-traffic DATA=..." + (f' ARGS="{" ".join(options)}"' if options else "")
    figures = {
        "machines": {name: asdict(each) for name, each in machines.items()},
        "acceptance": asdict(ACCEPTANCE),
        "traffic": [asdict(row) for row in rows],
        "noise": [asdict(case) for case in noisy],
        "claims": [claim.document() for claim in claims],
    }
    write(args.out, "traffic", command, figures, page(machines, rows, noisy), about="simulated")
    plot(rows, args.out / "traffic.png")


def _claims(rows: Sequence[Row], noisy: Sequence[Noisy]) -> list[Claim]:
    return [claim for row in rows for claim in row.claims()] + [case.claim() for case in noisy]


def _print(rows: Sequence[Row], noisy: Sequence[Noisy]) -> None:
    table = Table("claim", "ours", "other", "ratio", "bound", "")
    for claim in _claims(rows, noisy):
        table.add_row(*claim.cells)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
