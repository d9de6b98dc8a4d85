"""What `benchmarks.soak` sees of the daemon: its process once a second, and all of it while nobody asks."""

import asyncio
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2

from benchmarks.inside import look
from benchmarks.running import Daemon
from benchmarks.soak_clients import Outcome, Tally
from benchmarks.soak_trouble import Trouble
from specd.tasks import ended

_REPRESENTATIVE: Final = 30
"""So many samples' median is how much memory there is."""
_PATIENCE: Final = 600.0
_CONNECTIONS_CLOSE: Final = 6.0  # idle ones do after five seconds
_TOLD_EVERY: Final = 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The daemon's process at a moment."""

    seconds: float
    mib: float
    files: int
    threads: int
    alone: bool = True
    """One target is all that there is: none comes, none is kept. What two take is no leak."""


@dataclass(frozen=True, slots=True)
class Rest:
    """The daemon while nobody asks for anything."""

    mib: float
    files: Mapping[str, int]
    """What is open, by kind or name."""
    blocks_used: int
    blocks_missing: int
    """Of the KV pool: neither free nor used nor cached."""
    awaited: Sequence[str] = ()
    """What still went on when patience was at its end."""
    mapped: Mapping[str, float] | None = None
    """MiB that are resident, by what they are."""
    inside: Mapping[str, Any] | None = None
    """As `benchmarks.inside` tells."""

    @property
    def file_count(self) -> int:
        """How many are open."""
        return sum(self.files.values())


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

    def memory(self) -> float:
        """MiB: the median of the last samples with one target."""
        return statistics.median(
            one.mib for one in [one for one in self.samples if one.alone][-_REPRESENTATIVE:]
        )

    async def aclose(self) -> None:
        """Look no more."""
        await ended(self._task)

    async def _look(self) -> None:
        told = -_TOLD_EVERY
        while True:
            sample = sampled(self._daemon.pid, self.seconds, alone=await self._is_alone())
            self.samples.append(sample)
            if sys.stderr.isatty() or sample.seconds - told >= _TOLD_EVERY:
                told = sample.seconds
                sys.stderr.write(self._line(sample) + ("\r" if sys.stderr.isatty() else "\n"))
                sys.stderr.flush()
            await asyncio.sleep(1.0)

    async def _is_alone(self) -> bool:
        try:
            target = (await self._daemon.admin("GET", "/admin/v1/target")).json()
        except httpx2.TransportError:
            return False
        return not _changing(target)

    def _line(self, sample: Sample) -> str:
        outcomes, trouble = self._tally.outcomes, self._trouble.counts
        requests = ", ".join(f"{outcomes[one]:,} {one}" for one in Outcome)
        done = ", ".join(f"{count:,} {what}" for what, count in sorted(trouble.items()))
        return f"{sample.seconds / 60:5.1f} min  {requests}; {done}; {sample.mib:.1f} MiB, {sample.files} files  "


def sampled(pid: int, seconds: float, *, alone: bool = True) -> Sample:
    """What the kernel says of a process now."""
    status = Path(f"/proc/{pid}/status").read_text()
    figure = {
        name: int(rest.split()[0])
        for name, rest in re.findall(r"^(VmRSS|Threads):\s*(.*)$", status, re.MULTILINE)
    }
    files = sum(open_files(pid).values())
    return Sample(round(seconds, 1), figure["VmRSS"] / 1024, files, figure["Threads"], alone)


def open_files(pid: int) -> Counter[str]:
    """By what they are: the name of a file, the kind of a socket or pipe."""
    found: Counter[str] = Counter()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found[re.sub(r":\[\d+\]$", "", str(descriptor.readlink()))] += 1
    return found


def mapped(pid: int) -> dict[str, float]:
    """MiB of a process that are resident: the C library's heap, other memory without a file, and files."""
    found: Counter[str] = Counter()
    kind = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if match := re.match(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)", line):
            kind = _kind(match[1])
        elif line.startswith("Rss:"):
            found[kind] += int(line.split()[1])
    return {name: round(kib / 1024, 2) for name, kib in sorted(found.items())}


def _kind(name: str) -> str:
    if name.startswith("/"):
        return "files"
    return name.strip("[]") if name in {"[heap]", "[stack]"} else "anonymous"


async def at_rest(daemon: Daemon, name: str) -> Rest:
    """Once nothing runs or waits, no engine starts, and no earlier target is kept; name: of the look into it."""
    end = time.monotonic() + _PATIENCE
    while awaited := [*await _awaited(daemon)]:
        if time.monotonic() > end:
            break
        await asyncio.sleep(0.5)
    await asyncio.sleep(_CONNECTIONS_CLOSE)
    status, sample = await daemon.status(), sampled(daemon.pid, 0.0)
    kv = status["kv"] or {"used": -1, "free": 0, "cached": 0}
    total = status["engine"]["info"]["kv_blocks"]
    return Rest(
        sample.mib,
        dict(open_files(daemon.pid)),
        kv["used"],
        total - sum(kv.values()),
        awaited,
        mapped(daemon.pid),
        await look(daemon.folder, name),
    )


async def calm(daemon: Daemon, struck: int | None) -> None:
    """Once the engine that was struck last has another in its place, and no earlier target is kept."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        status, target = await daemon.status(), (await daemon.admin("GET", "/admin/v1/target")).json()
        if status["ready"] and status["engine"]["pid"] != struck and not _changing(target):
            return
        await asyncio.sleep(0.5)


async def _awaited(daemon: Daemon) -> Iterator[str]:
    """What goes on, in words."""
    status, target = await daemon.status(), (await daemon.admin("GET", "/admin/v1/target")).json()
    load, kv = status["load"], status["kv"]
    going_on = {
        f"not ready: {status['unready_because']}": not status["ready"],
        f"requests: {load}": bool(load["running"] or load["waiting"] or load["admitted"]),
        f"a change of the target: {target['doing']}": bool(target["doing"]),
        "the target before is kept": _changing(target) and not target["doing"],
        f"KV blocks in use: {kv}": not kv or bool(kv["used"]),
    }
    return (what for what, is_so in going_on.items() if is_so)


def _changing(target: Mapping[str, Any]) -> bool:
    return bool((target["previous"] or {}).get("kept") or target["doing"])
