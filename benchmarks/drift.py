"""`make bench-drift`: how soon the drift detectors find a fall, and how often they cry for nothing.

Simulated requests, fixed seeds, no model. Writes benchmarks/results/drift.json, drift.md and drift.png.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

from benchmarks.drift_canary import CANARY, Judged, judged
from benchmarks.drift_cases import (
    CLASSES,
    STATIONARY,
    Change,
    FalseAlerts,
    Found,
    changed,
    spread_of_rates,
    stationary,
)
from benchmarks.drift_page import page, plot
from benchmarks.drift_traffic import Traffic
from benchmarks.paper import write

_RESULTS: Final = Path(__file__).parent / "results"
_RUNS: Final = 200
_REQUESTS: Final = 20_000
_BEFORE: Final = 500
_MEAN: Final = 0.7
_SPREADS: Final = (0.03, 0.06, 0.09, 0.12, 0.15)
_LONGEST: Final = 3000
_USUAL: Final = Traffic()


@dataclass(frozen=True, slots=True)
class Case:
    """A change that must be found, and by when."""

    name: str
    change: Change
    longest: int = _LONGEST
    traffic: Traffic = _USUAL
    before: int = _BEFORE
    mean: float = _MEAN
    one_of_four: bool = False
    """At position 1 alone, of one class of four; else at all positions, of the only class."""
    most_requests: float | None = None
    """The bound at the 90th percentile."""
    most_lost: float | None = None
    """The bound on the acceptance that is lost by the alert, for every run."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a case."""

    case: Case
    found: Found

    @property
    def lost(self) -> float:
        """Acceptance that is lost by the alert, in the worst run."""
        last = self.found.at(1.0)
        return -self.case.change(int(last)) if last < float("inf") else float("inf")

    @property
    def bound(self) -> str:
        """In words."""
        if self.case.most_requests is not None:
            return f"p90 ≤ {self.case.most_requests:g} requests"
        return "" if self.case.most_lost is None else f"lost < {self.case.most_lost:g}"

    @property
    def met(self) -> bool | None:
        """None without a bound."""
        if self.case.most_requests is not None:
            return self.found.at(0.9) <= self.case.most_requests
        return None if self.case.most_lost is None else self.lost < self.case.most_lost

    @property
    def cells(self) -> tuple[str, ...]:
        """For a table."""
        found = self.found
        return (
            self.case.name,
            f"{found.at(0.5):g}",
            f"{found.at(0.9):g}",
            f"{found.at(1.0):g}",
            f"{self.lost:.3f}",
            f"{found.early + found.elsewhere}",
            ", ".join(f"{kind} {count}" for kind, count in found.called.items()),
            self.bound,
            {None: "", True: "met", False: "NOT MET"}[self.met],
        )

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "case": self.case.name,
            "requests": [each if each < float("inf") else None for each in self.found.requests],
            "alerts_before_the_change": self.found.early,
            "alerts_of_other_classes": self.found.elsewhere,
            "called": self.found.called,
            "lost": self.lost,
            "bound": self.bound,
            "met": self.met,
        }


def step(drop: float) -> Change:
    """All at once."""
    return lambda _: -drop


def decay(drop: float, over: int) -> Change:
    """Little by little over so many requests of the class."""
    return lambda since: -drop * min(since / over, 1.0)


CASES: Final = (
    Case("step of -0.10", step(0.10)),
    Case("step of -0.25", step(0.25)),
    Case("decay of -0.15 over 5,000 requests of the class", decay(0.15, 5000), 5000, most_lost=0.10),
    Case(
        "decay of -0.15 over 5,000 requests, a quarter of them of the class",
        decay(0.15, 1250),
        1250,
        most_lost=0.10,
    ),
    Case("step of -0.10 behind 150 requests", step(0.10), before=150),
    Case("step of -0.10 behind 5,000 requests", step(0.10), before=5000),
    Case("step of -0.10 from 0.8", step(0.10), mean=0.8),
    Case("step of -0.10 from 0.5", step(0.10), mean=0.5),
    Case("step of -0.10, chances known", step(0.10), traffic=Traffic(by_chance=True)),
    *(
        Case(
            f"step of -{drop:.2f}, requests differ by {spread:g}", step(drop), traffic=Traffic(spread=spread)
        )
        for drop in (0.10, 0.25)
        for spread in _SPREADS
    ),
    Case("step of -0.10 at position 1, in one class of four", step(0.10), most_requests=60, one_of_four=True),
    Case("step of -0.25 at position 1, in one class of four", step(0.25), most_requests=15, one_of_four=True),
)
"""The place of each is its seed."""


def result(case: Case, *, runs: int, seed: int) -> Result:
    """So many runs of it."""
    others = [each for each in CLASSES if each != case.mean] if case.one_of_four else []
    found = changed(
        case.change,
        runs=runs,
        seed=seed,
        mean=case.mean,
        before=case.before,
        longest=case.longest,
        traffic=case.traffic,
        beside=others,
        first_only=case.one_of_four,
    )
    return Result(case, found)


def _results(runs: int, progress: Progress) -> Iterator[Result]:
    task = progress.add_task("changes", total=len(CASES))
    for seed, case in enumerate(CASES):
        progress.update(task, description=case.name)
        yield result(case, runs=runs, seed=seed)
        progress.advance(task)


def _false_alerts(runs: int, requests: int, progress: Progress) -> Iterator[tuple[str, FalseAlerts]]:
    task = progress.add_task("no change", total=len(STATIONARY))
    for seed, case in enumerate(STATIONARY):
        progress.update(task, description=case.name)
        yield case.name, stationary(case, runs=runs, requests=requests, seed=100 + seed, traffic=_USUAL)
        progress.advance(task)


def main() -> int:
    """Simulate, print, write."""
    args = _arguments()
    with Progress(
        *Progress.get_default_columns()[:2], TimeElapsedColumn(), console=Console(stderr=True)
    ) as bar:
        results = sorted(_results(args.runs, bar), key=lambda one: not one.case.one_of_four)
        false = dict(_false_alerts(args.runs, args.requests, bar))
    spread = spread_of_rates(_USUAL, _MEAN, seed=1000)
    replays = [judged(case, args.runs) for case in CANARY]
    _print(results, false, replays)
    figures = {
        "runs": args.runs,
        "changes": [result.document() for result in results],
        "no_change": {
            name: {"requests": each.requests, "alerts": each.alerts, "highest_score": each.highest}
            for name, each in false.items()
        },
        "canary": [each.document() for each in replays],
        "spread_of_rates": {"seen": spread[0], "if_tokens_were_independent": spread[1]},
    }
    write(
        args.out,
        "drift",
        "make bench-drift",
        figures,
        page(results, false, replays, spread),
        about="simulated",
    )
    plot(results, args.out / "drift.png")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-drift", description=__doc__)
    option = parser.add_argument
    option("--runs", type=int, default=_RUNS, help="of each case (default: %(default)s)")
    option("--requests", type=int, default=_REQUESTS, help="of a run without a change (default: %(default)s)")
    option("--out", type=Path, default=_RESULTS, help="folder for the results")
    return parser.parse_args()


def _print(results: list[Result], false: dict[str, FalseAlerts], replays: list[Judged]) -> None:
    table = Table("change", "p50", "p90", "last", "lost", "early", "called", "bound", "")
    for result in results:
        table.add_row(*result.cells)
    alerts = Table("no change", "runs", "requests each", "false alerts", "highest score")
    for name, each in false.items():
        alerts.add_row(name, f"{each.runs}", f"{each.requests}", f"{each.alerts}", f"{each.highest:.2f}")
    canary = Table("canary", "drafted tokens", "updates", "called a fall", "bound", "")
    for replay in replays:
        canary.add_row(*replay.cells)
    Console(width=160).print(table, alerts, canary)


if __name__ == "__main__":
    sys.exit(main())
