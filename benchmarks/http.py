"""`make bench-http`: what HTTP and the way between daemon and engine cost, with an engine that computes nothing.

The daemon has one core for itself; the engine and the clients, which only count, have the others. 32 streams are open.

delay    the engine steps at the pace of a real one; from the moment before a step's message is written until the client
         has each of its events
flat out the engine steps as fast as the daemon reads: how many tokens one core streams, and what an event costs it

Tokens come alone, or in batches, as accepted drafts do: a batch is an event. In a run of its own the daemon's core is
sampled for what it is at. Writes benchmarks/results/http.json and http.md; exits 1 where a bound is not kept.
"""

import argparse
import asyncio
import json
import os
import select
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from rich.console import Console

from benchmarks.inside import look
from benchmarks.paper import section, write
from benchmarks.running import Daemon
from specd.models.cache import cache_dir
from specd.models.resolve import demo_directory

_RESULTS: Final = Path(__file__).parent / "results"
_STREAMS: Final = 32
_PAUSE: Final = 0.02
"""Seconds between steps, where delays are looked at: those of a fast engine."""
_DELAY_BOUND: Final = 1e-3
_RATE_BOUND: Final = 20_000.0
_PROMPT: Final = "one and two and three and four and five and six"
_MARK: Final = b"data: "
_END: Final = b"0\r\n\r\n"
_WORTH_TELLING: Final = 0.02
"""Of all the time: functions with less are not told."""
_OURS: Final = ("specd.", "engine.", "policies.", "uvicorn.")


@dataclass(frozen=True, slots=True)
class Streamed:
    """What a client saw of its request."""

    id: str
    times: list[float]
    """When each event came that brought tokens, on the monotonic clock."""
    complete: bool
    """Whether it ended as a stream ends."""


@dataclass(frozen=True, slots=True)
class Found:
    """One run."""

    batch: int
    """Tokens of an event."""
    pause: float
    """Seconds between the engine's steps; 0 for none."""
    tokens: int
    seconds: float
    cpu_seconds: float
    """Of the daemon."""
    delays: tuple[float, ...]
    """Seconds: p50, p99 and the longest."""

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    @property
    def cost(self) -> float:
        """Seconds of the daemon's core for each event."""
        return self.cpu_seconds * self.batch / self.tokens

    @property
    def cells(self) -> tuple[str, ...]:
        """For a table."""
        return (
            f"{self.batch}",
            f"{1e3 * self.pause:g} ms" if self.pause else "none",
            f"{self.rate:,.0f}",
            f"{1e6 * self.cost:.0f}",
            *(f"{1e3 * seconds:.2f}" for seconds in self.delays),
        )


_HEADER: Final = (
    *("tokens in an event", "pause between steps", "tokens/s", "core's time for an event, µs"),
    *("delay p50, ms", "p99", "longest"),
)


class Client:
    """One connection, read as it comes and looked at afterwards: nothing that is measured waits for that."""

    def __init__(self, port: int, request: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(request)
        self._came: list[tuple[float, bytes]] = []

    def read(self) -> bool:
        """What there is. False where that was the end."""
        data = self.socket.recv(1 << 16)
        self._came.append((time.monotonic(), data))
        return bool(data) and not data.endswith(_END)

    def streamed(self) -> Streamed:
        """What it came to."""
        self.socket.close()
        whole = b"".join(data for _, data in self._came)
        complete = b"[DONE]" in whole[-64:]
        times = list(self._times())
        name = whole.partition(b'"id":"')[2].partition(b'"')[0].decode()
        return Streamed(
            name, times[:-1] if complete else times, complete
        )  # the last event is the mark of the end

    def _times(self) -> Iterator[float]:
        """Each event begins with a mark, which may come in two parts."""
        tail = b""
        for now, data in self._came:
            text = tail + data
            yield from repeat(now, text.count(_MARK))
            tail = text[-(len(_MARK) - 1) :]


@dataclass(frozen=True, slots=True)
class Run:
    """What is done in one."""

    batch: int
    pause: float
    tokens: int
    """Of each stream."""

    def engine(self, times: Path) -> list[str]:
        """The command of one that computes nothing; times: where it says when it sent what."""
        command = [sys.executable, "-m", "benchmarks.null_engine", "--times", str(times)]
        command += ["--tokens", str(self.batch), "--pause", str(self.pause)]
        cpus = sorted(os.sched_getaffinity(0))
        return [*command, "--cpus", ",".join(map(str, cpus[1:]))] if len(cpus) > 1 else command


def _daemon(run: Run, folder: Path, times: Path, looks: Literal["", "sampled"] = "") -> Daemon:
    model = {"path": str(demo_directory(cache_dir())), "name": "null"}
    config = {"model": {"target": model}, "canary": {"enabled": False}}
    cpu = min(os.sched_getaffinity(0))
    return Daemon(folder, config, engine=run.engine(times), cpu=cpu, looks=looks)


async def measured(folder: Path, run: Run) -> Found:
    """32 streams."""
    times = folder / f"times-{run.batch}-{run.pause}"
    async with _daemon(run, folder, times) as daemon:
        await _streams(daemon, tokens=_STREAMS)  # what is made at first use is made
        times.write_text("")
        before, began = _cpu_seconds(daemon.pid), time.monotonic()
        streamed = await _streams(daemon, tokens=run.tokens)
        seconds, cpu = time.monotonic() - began, _cpu_seconds(daemon.pid) - before
    delays = _delays(streamed, times.read_text())
    return Found(run.batch, run.pause, run.tokens * _STREAMS, seconds, cpu, delays)


async def profiled(folder: Path, run: Run) -> dict[str, Any]:
    """The same, and what the daemon was at meanwhile, as `benchmarks.inside` tells it."""
    async with _daemon(run, folder, folder / "times-profiled", "sampled") as daemon:
        await _streams(daemon, tokens=_STREAMS)
        await look(folder, "before")
        await _streams(daemon, tokens=run.tokens)
        found: dict[str, Any] = (await look(folder, "after"))["sampled"]
    return found


async def _streams(daemon: Daemon, *, tokens: int) -> list[Streamed]:
    body = json.dumps({"prompt": _PROMPT, "max_tokens": tokens, "stream": True, "ignore_eos": True})
    head = ["POST /v1/completions HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", "", body]
    streamed = await asyncio.to_thread(_read_all, daemon.port, "\r\n".join(head).encode())
    assert all(one.complete for one in streamed), f"a stream broke off: {daemon.log.read_text()[-2000:]}"
    return streamed


def _read_all(port: int, request: bytes) -> list[Streamed]:
    clients = {one.socket.fileno(): one for one in [Client(port, request) for _ in range(_STREAMS)]}
    with select.epoll() as epoll:
        for number in clients:
            epoll.register(number, select.EPOLLIN)
        left = len(clients)
        while left:
            for number, _ in epoll.poll():
                if not clients[number].read():
                    epoll.unregister(number)
                    left -= 1
    return [one.streamed() for one in clients.values()]


def _delays(streamed: Sequence[Streamed], sent: str) -> tuple[float, ...]:
    """Of all events: the median, the 99th of a hundred, and the longest, in seconds."""
    by_id = {name: list(map(float, times)) for name, *times in map(str.split, sent.splitlines())}
    delays = np.concatenate(
        [np.subtract(one.times, by_id[one.id]) for one in streamed]  # as many came as were sent, or it raises
    )
    return (*map(float, np.quantile(delays, [0.5, 0.99])), float(delays.max()))


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bounds(found: Sequence[Found]) -> list[tuple[str, bool]]:
    """What must be, and whether it is."""
    paced = [one for one in found if one.pause]
    flat_out = [one for one in found if not one.pause]
    return [
        (
            f"an event is with its client within {1e3 * _DELAY_BOUND:g} ms of the step, 99 times of 100",
            all(one.delays[1] < _DELAY_BOUND for one in paced),
        ),
        (
            f"one core streams {_RATE_BOUND:,.0f} tokens a second, in events of one",
            all(one.rate >= _RATE_BOUND for one in flat_out),
        ),
    ]


def page(found: Sequence[Found]) -> list[str]:
    """Lines of Markdown."""
    words = (
        f"{_STREAMS} streams of /v1/completions. Delays run from the moment before the engine writes a step's message,"
        " which has an event for each stream, until the client has read each of them, so that the last one's has all 32"
        " in it; where the engine does not pause they are of a queue that is always full, and say nothing."
    )
    kept = [f"* {'kept' if held else 'NOT KEPT'}: {what}" for what, held in bounds(found)]
    return [*section(words, _HEADER, [one.cells for one in found]), *kept, ""]


def _time_goes(sampled: Mapping[str, Any], cost: float) -> list[str]:
    """Lines of Markdown. cost: seconds of an event."""
    total = sum(sampled["itself"].values())
    shares = {name: count / total for name, count in sampled["within"].items()}
    rows = [
        [
            f"`{name}`",
            f"{share:.0%}",
            f"{sampled['itself'].get(name, 0) / total:.0%}",
            f"{1e6 * cost * share:.1f}",
        ]
        for name, share in sorted(shares.items(), key=lambda one: -one[1])
        if share >= _WORTH_TELLING and name.startswith(_OURS)
    ]
    words = (
        "Where the time goes, events of one token and no pause: the main thread sampled by its processor time. What is"
        " in C counts for whoever calls it."
    )
    return section(words, ("function", "with what it calls", "itself", "µs of an event"), rows)


async def _all(folder: Path, say: Callable[[str], None], scale: float) -> tuple[list[Found], dict[str, Any]]:
    found = []
    for batch, pause, tokens in ((1, _PAUSE, 500), (4, _PAUSE, 2000), (1, 0.0, 10_000), (4, 0.0, 40_000)):
        say(f"events of {batch}, a pause of {pause:g} s")
        found.append(await measured(folder, Run(batch, pause, int(tokens * scale))))
    say("where the time goes")
    return found, await profiled(folder, Run(1, 0.0, int(5000 * scale)))


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="make bench-http", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the length of all runs")
    parser.add_argument("--out", type=Path, default=_RESULTS, help="folder for http.json and http.md")
    args = parser.parse_args()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        found, sampled = asyncio.run(_all(Path(folder), console.print, args.scale))
    (flat_out,) = [one for one in found if one.batch == 1 and not one.pause]
    lines = [*page(found), *_time_goes(sampled, flat_out.cost)]
    Console().print("\n".join(lines), markup=False, soft_wrap=True)
    runs = [asdict(one) | {"rate": one.rate} for one in found]
    figures = {"streams": _STREAMS, "runs": runs, "sampled": sampled}
    write(args.out, "http", "make bench-http", figures, lines, about="an engine that computes nothing")
    return 0 if all(held for _, held in bounds(found)) else 1


if __name__ == "__main__":
    sys.exit(main())
