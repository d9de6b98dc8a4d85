"""`make soak`: half an hour of everything at once, and what the daemon has left of it.

A real daemon serves the demo model to clients with requests of every sort, of whom some leave in the middle, while its
config is reloaded, well and badly and for a minute ten times a second, its target replaced, and its engine killed or
stopped. Bounds, of which one that is not kept makes this exit 1:

  /health is answered two seconds after the start, while the model loads
  every request is answered, refused in OpenAI's shape, or ended with an error event
  the storm of reloads drops no request, and leaves config and engine as they were
  the daemon's resident memory stays within 5 % of what it is after five minutes, as long as one target is there
  when nobody asks for anything it comes to rest
  at rest no more files are open than were at rest after five minutes, and no KV block is in use
  no traceback in the log, every reload and update answered as it should be, and an end when told to

Writes benchmarks/results/soak.json, soak.md and soak.png, with what memory is made of at both rests. --null has an
engine that computes nothing. --trace says where Python's memory was asked for, and judges no memory, since that takes
much.
"""

import argparse
import asyncio
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.paper import write
from benchmarks.running import Daemon
from benchmarks.soak_clients import Clients, Outcome, Tally
from benchmarks.soak_page import page, plot
from benchmarks.soak_trouble import Trouble
from benchmarks.soak_watch import Rest, Watcher, at_rest, calm
from engine.processor import quick_format
from specd.models.cache import cache_dir
from specd.models.resolve import demo_directory

_RESULTS: Final = Path(__file__).parent / "results"
_SETTLED: Final = 300.0
"""Seconds after which memory is to stay as it is; of a shorter run a third."""
_STORM: Final = 60.0
_MEMORY_BOUND: Final = 0.05
_ALIVE_BOUND: Final = 2.0
_EXPECTED: Final = frozenset({"queue_full", "invalid_value"})
"""Codes of refusals that clients provoke: more requests than there are places, and bodies that are wrong."""
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
    trace: bool = False

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
class Parts:
    """What takes part."""

    daemon: Daemon
    tally: Tally
    clients: Clients
    trouble: Trouble
    watcher: Watcher

    async def load(self, seconds: float, name: str, *, storm: float = 0.0) -> tuple[float, Rest]:
        """So many seconds of it, the last of them a storm of reloads; memory at their end, and the daemon at rest,
        which is looked into by this name.
        """
        self.clients.go_on()
        self.trouble.begin()
        await asyncio.sleep(seconds - storm)
        await self.trouble.cease()
        await calm(self.daemon, self.trouble.struck)
        before = Counter(self.tally.codes)
        await self.trouble.storm(storm)
        memory = self.watcher.memory()
        await self.clients.rest()
        self.trouble.dropped.update(dropped(before, self.tally.codes))
        return memory, await at_rest(self.daemon, name)


def dropped(before: Mapping[str, int], after: Mapping[str, int]) -> Counter[str]:
    """Errors by code that came between, while nobody touched the engine, and that no client has to blame itself for."""
    new = Counter(after) - Counter(before)
    return Counter({code: count for code, count in new.items() if code not in _EXPECTED})


async def run(asked: Asked, folder: Path) -> dict[str, Any]:
    """Do it; all that was found."""
    looks: Final = "traced" if asked.trace else "plain"
    async with Daemon(folder, _config(asked, folder), engine=_engine(asked, folder), looks=looks) as daemon:
        tally, trouble = Tally(), Trouble(daemon, asked.seed, every=asked.every)
        clients = Clients(daemon, tally, asked.clients, asked.seed, plain=asked.null)
        watcher = Watcher(daemon, tally, trouble)
        parts = Parts(daemon, tally, clients, trouble, watcher)
        try:
            first, settled = await parts.load(asked.settled, "settled")
            at = watcher.seconds
            last, ended = await parts.load(asked.seconds - asked.settled, "ended", storm=asked.storm)
        finally:
            await clients.aclose()
            await watcher.aclose()
    bounds = [*_bounds(tally, trouble, daemon), *_leaks(first, settled, last, ended)]
    if asked.trace:
        bounds = [bound for bound in bounds if not bound[0].startswith("memory")]
    moments = [(what, round(when - watcher.began, 1)) for what, when in trouble.moments]
    samples = [asdict(sample) for sample in watcher.samples]
    return {
        "asked": asdict(asked),
        "outcomes": dict(tally.outcomes),
        "codes": dict(tally.codes),
        "unanswered": tally.unanswered,
        "alive_after": daemon.alive_after,
        "ready_after": daemon.ready_after,
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
    lost = ", ".join(f"{count} {code}" for code, count in sorted(trouble.dropped.items()))
    bad = [line for line in daemon.log.read_text(errors="replace").splitlines() if _BAD_LINES.search(line)]
    return [
        (
            f"/health is answered in under {_ALIVE_BOUND:g} s",
            daemon.alive_after < _ALIVE_BOUND,
            f"after {daemon.alive_after:.2f} s; ready after {daemon.ready_after:.1f} s",
        ),
        (
            "no request without an answer",
            not without and answered > 0,
            f"{without} of {tally.outcomes.total():,}",
        ),
        ("the storm of reloads drops no request", not trouble.dropped, lost or "none"),
        ("no unhandled exception in the log", not bad, f"{len(bad)}"),
        (
            "reloads and updates are answered as they should be, and change nothing else",
            not trouble.broken,
            f"{len(trouble.broken)} not",
        ),
        ("an end when told to", daemon.exit_code == 0, f"exit code {daemon.exit_code}"),
    ]


def _leaks(first: float, settled: Rest, last: float, ended: Rest) -> list[Bound]:
    growth = last / first - 1
    more = {name: count - settled.files.get(name, 0) for name, count in ended.files.items()}
    new = ", ".join(f"{count} more of {name}" for name, count in more.items() if count > 0)
    return [
        (
            f"memory within {_MEMORY_BOUND:.0%} of what it was when settled",
            abs(growth) <= _MEMORY_BOUND,
            f"{first:.1f} MiB, then {last:.1f} ({growth:+.1%}); at rest {settled.mib:.1f}, then {ended.mib:.1f}",
        ),
        (
            "it comes to rest when nobody asks",
            not (settled.awaited or ended.awaited),
            "; ".join((*settled.awaited, *ended.awaited)) or "each time",
        ),
        (
            "no file descriptor leaked",
            ended.file_count <= settled.file_count,
            f"{settled.file_count}, then {ended.file_count}{f' ({new})' if new else ''}",
        ),
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
    parser.add_argument("--trace", action="store_true", help="say where Python's memory was asked for")
    parser.add_argument("--out", type=Path, default=_RESULTS, help="folder for the results")
    args = parser.parse_args()
    asked = Asked(args.minutes, args.clients, args.seed, args.null, args.trace)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(asked, Path(folder)))
        failed = [what for what, held, _ in found["bounds"] if not held]
        if failed:
            _keep_log(Path(folder), args.out)
    lines = page(found)
    print("\n" + "\n".join([*lines, *found["unanswered"], *found["broken"]]))  # noqa: T201  the answer of a command
    plot(found["samples"], found["moments"], found["settled_seconds"], args.out / "soak.png")
    kept = {**found, "samples": found["samples"][::10]}
    about = "an engine that computes nothing" if args.null else f"demo model, {quick_format()}, CPU"
    write(args.out, "soak", f"make soak ARGS='--minutes {args.minutes:g}'", kept, lines, about=about)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
