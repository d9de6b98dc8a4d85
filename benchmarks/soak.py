"""`make soak`: half an hour of everything at once, and what the daemon has left of it.

A real daemon serves the demo model to clients with requests of every sort, of whom some leave in the middle, while its
config is reloaded, well and badly and for a minute ten times a second, its target replaced, and its engine killed or
stopped. Bounds, of which one that is not kept makes this exit 1:

  every request is answered, refused in OpenAI's shape, or ended with an error event
  the daemon's resident memory stays within 5 % of what it is after five minutes
  at rest no more files are open than were at rest after five minutes, and no KV block is in use
  no traceback in the log, every reload and update answered as it should be, and an end when told to

Writes benchmarks/results/soak.json, soak.md and soak.png. --null has an engine that computes nothing.
"""

import argparse
import asyncio
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.paper import write
from benchmarks.running import Daemon
from benchmarks.soak_clients import Clients, Outcome, Tally
from benchmarks.soak_page import page, plot
from benchmarks.soak_trouble import Trouble
from specd.models.cache import cache_dir
from specd.models.resolve import demo_directory

_RESULTS: Final = Path(__file__).parent / "results"
_SETTLED: Final = 300.0
"""Seconds after which memory is to stay as it is; of a shorter run a third."""
_STORM: Final = 60.0
_MEMORY_BOUND: Final = 0.05
_WINDOW: Final = 30.0  # seconds of which memory's median is taken
_PATIENCE: Final = 180.0
_TOLD_EVERY: Final = 30.0
_BAD_LINES: Final = re.compile(
    r"Traceback \(most recent|never retrieved|Exception in callback|was destroyed but"
)

Bound = tuple[str, bool, str]
"""What must be, whether it is, and what was found."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is done."""

    minutes: float
    clients: int
    seed: int
    null: bool

    @property
    def seconds(self) -> float:
        """Of load, in all."""
        return 60 * self.minutes

    @property
    def settled(self) -> float:
        """Seconds after which memory is to stay as it is."""
        return min(_SETTLED, self.seconds / 3)

    @property
    def storm(self) -> float:
        """Seconds of reloads ten times a second."""
        return min(_STORM, self.seconds / 6)

    @property
    def every(self) -> float:
        """Seconds between kills, and between updates."""
        return min(90.0, self.seconds / 6)


@dataclass(frozen=True, slots=True)
class Sample:
    """The daemon's process at a moment."""

    seconds: float
    mib: float
    files: int
    threads: int


@dataclass(frozen=True, slots=True)
class Rest:
    """The daemon while nobody asks for anything."""

    mib: float
    files: int
    blocks_used: int
    blocks_missing: int
    """Of the KV pool: neither free nor used nor cached."""


class Watcher:
    """Looks at the process once a second, and says how far things are."""

    def __init__(self, daemon: Daemon, tally: Tally, trouble: Trouble) -> None:
        self.samples: list[Sample] = []
        self.began = time.monotonic()
        self._daemon, self._tally, self._trouble = daemon, tally, trouble
        self._task = asyncio.create_task(self._look())

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self.began

    def median(self) -> float:
        """Of the last seconds' memory, MiB."""
        after = self.seconds - _WINDOW
        return statistics.median(sample.mib for sample in self.samples if sample.seconds >= after)

    async def aclose(self) -> None:
        """Look no more."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _look(self) -> None:
        told = -_TOLD_EVERY
        while True:
            sample = sampled(self._daemon.pid, self.seconds)
            self.samples.append(sample)
            if sys.stderr.isatty() or sample.seconds - told >= _TOLD_EVERY:
                told = sample.seconds
                sys.stderr.write(self._line(sample) + ("\r" if sys.stderr.isatty() else "\n"))
                sys.stderr.flush()
            await asyncio.sleep(1.0)

    def _line(self, sample: Sample) -> str:
        outcomes, trouble = self._tally.outcomes, self._trouble.counts
        requests = ", ".join(f"{outcomes[one]:,} {one}" for one in Outcome)
        done = ", ".join(f"{count:,} {what}" for what, count in sorted(trouble.items()))
        return f"{sample.seconds / 60:5.1f} min  {requests}; {done}; {sample.mib:.1f} MiB, {sample.files} files  "


def sampled(pid: int, seconds: float) -> Sample:
    """What the kernel says of a process now."""
    status = Path(f"/proc/{pid}/status").read_text()
    figure = {
        name: int(rest.split()[0])
        for name, rest in re.findall(r"^(VmRSS|Threads):\s*(.*)$", status, re.MULTILINE)
    }
    files = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208  a count
    return Sample(round(seconds, 1), figure["VmRSS"] / 1024, files, figure["Threads"])


async def at_rest(daemon: Daemon) -> Rest:
    """Once nothing runs or waits, no engine starts, and no earlier target is kept."""
    end = time.monotonic() + _PATIENCE
    while not await _rests(daemon):
        if time.monotonic() > end:
            break  # what is still in use shows below
        await asyncio.sleep(0.5)
    await asyncio.sleep(6.0)  # idle connections are closed after five seconds
    status, sample = await daemon.status(), sampled(daemon.pid, 0.0)
    kv = status["kv"] or {"used": -1, "free": 0, "cached": 0}
    total = status["engine"]["info"]["kv_blocks"]
    return Rest(sample.mib, sample.files, kv["used"], total - sum(kv.values()))


async def _rests(daemon: Daemon) -> bool:
    status, target = await daemon.status(), (await daemon.admin("GET", "/admin/v1/target")).json()
    load, kv = status["load"], status["kv"]
    open_requests = load["running"] + load["waiting"] + load["admitted"]
    kept = (target["previous"] or {}).get("kept") or target["doing"]
    return bool(status["ready"] and kv and not (open_requests or kept or kv["used"]))


@dataclass(frozen=True, slots=True)
class Parts:
    """What takes part."""

    daemon: Daemon
    clients: Clients
    trouble: Trouble
    watcher: Watcher

    async def load(self, seconds: float, *, storm: float = 0.0) -> tuple[float, Rest]:
        """So many seconds of it, the last of them a storm of reloads; memory at their end, and the daemon at rest."""
        self.clients.go_on()
        self.trouble.begin()
        await asyncio.sleep(seconds - storm)
        await self.trouble.cease()
        await self.trouble.storm(storm)
        memory = self.watcher.median()
        await self.clients.rest()
        return memory, await at_rest(self.daemon)


async def run(asked: Asked, folder: Path) -> dict[str, Any]:
    """Do it; all that was found."""
    async with Daemon(folder, _config(asked, folder), engine=_engine(asked, folder)) as daemon:
        tally, trouble = Tally(), Trouble(daemon, asked.seed, every=asked.every)
        clients = Clients(daemon, tally, asked.clients, asked.seed, plain=asked.null)
        watcher = Watcher(daemon, tally, trouble)
        parts = Parts(daemon, clients, trouble, watcher)
        try:
            first, settled = await parts.load(asked.settled)
            at = watcher.seconds
            last, ended = await parts.load(asked.seconds - asked.settled, storm=asked.storm)
        finally:
            await clients.aclose()
            await watcher.aclose()
    bounds = [*_bounds(tally, trouble, daemon), *_leaks(first, settled, last, ended)]
    moments = [(what, round(when - watcher.began, 1)) for what, when in trouble.moments]
    samples = [asdict(sample) for sample in watcher.samples]
    return {
        "asked": asdict(asked),
        "outcomes": dict(tally.outcomes),
        "codes": dict(tally.codes),
        "unanswered": tally.unanswered,
        "trouble": dict(trouble.counts),
        "refusals": dict(trouble.refusals),
        "broken": trouble.broken,
        "bounds": bounds,
        "memory_under_load": {"settled": first, "at_the_end": last},
        "at_rest": {"settled": asdict(settled), "at_the_end": asdict(ended)},
        "settled_seconds": at,
        "moments": moments,
        "samples": samples,
    }


def _config(asked: Asked, folder: Path) -> dict[str, Any]:
    return {
        "server": {"max_queue": asked.clients // 3},
        "engine": {"hang_seconds": 10.0, "max_running": 12, "kv_mib": 192},
        "model": {
            "target": {
                "path": str(demo_directory(cache_dir())),
                "name": "soak",
                "update": {"keep_seconds": 5.0},
            }
        },
        "canary": {"enabled": not asked.null, "tokens": 8},
        "telemetry": {"reports_file": str(folder / "reports.jsonl"), "reports_mib": 1.0},
    }


def _engine(asked: Asked, folder: Path) -> Sequence[str]:
    if not asked.null:
        return ()
    times = str(folder / "times")
    return (
        sys.executable,
        "-m",
        "benchmarks.null_engine",
        "--times",
        times,
        "--tokens",
        "3",
        "--pause",
        "0.02",
    )


def _bounds(tally: Tally, trouble: Trouble, daemon: Daemon) -> list[Bound]:
    without, answered = tally.outcomes[Outcome.UNANSWERED], tally.outcomes[Outcome.ANSWERED]
    bad = [line for line in daemon.log.read_text(errors="replace").splitlines() if _BAD_LINES.search(line)]
    return [
        (
            "no request without an answer",
            not without and answered > 0,
            f"{without} of {tally.outcomes.total():,}",
        ),
        ("no unhandled exception in the log", not bad, f"{len(bad)}"),
        (
            "reloads and updates are answered as they should be",
            not trouble.broken,
            f"{len(trouble.broken)} not",
        ),
        ("an end when told to", daemon.exit_code == 0, f"exit code {daemon.exit_code}"),
    ]


def _leaks(first: float, settled: Rest, last: float, ended: Rest) -> list[Bound]:
    growth = last / first - 1
    return [
        (
            f"memory within {_MEMORY_BOUND:.0%} of what it was when settled",
            abs(growth) <= _MEMORY_BOUND,
            f"{first:.1f} MiB, then {last:.1f} ({growth:+.1%}); at rest {settled.mib:.1f}, then {ended.mib:.1f}",
        ),
        ("no file descriptor leaked", ended.files <= settled.files, f"{settled.files}, then {ended.files}"),
        (
            "no KV block leaked",
            not (ended.blocks_used or ended.blocks_missing),
            f"{ended.blocks_used} in use at rest, {ended.blocks_missing} missing",
        ),
    ]


def _keep_log(folder: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "soak.log").write_bytes((folder / "log").read_bytes())


def main() -> int:
    """Do it, print, write."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of load (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--null", action="store_true", help="with an engine that computes nothing")
    parser.add_argument("--out", type=Path, default=_RESULTS, help="folder for the results")
    args = parser.parse_args()
    asked = Asked(args.minutes, args.clients, args.seed, args.null)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(asked, Path(folder)))
        failed = [what for what, held, _ in found["bounds"] if not held]
        if failed:
            _keep_log(Path(folder), args.out)
    lines = page(found)
    print("\n" + "\n".join([*lines, *found["unanswered"], *found["broken"]]))  # noqa: T201  the answer of a command
    plot(found["samples"], found["moments"], found["settled_seconds"], args.out / "soak.png")
    kept = {**found, "samples": found["samples"][::10]}
    about = "an engine that computes nothing" if args.null else "demo model, bf16, CPU"
    write(args.out, "soak", f"make soak ARGS='--minutes {args.minutes:g}'", kept, lines, about=about)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
