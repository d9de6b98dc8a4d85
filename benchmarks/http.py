"""`make bench-http`: what HTTP and the way between daemon and engine cost, with an engine that computes nothing.

The daemon has one core for itself; the engine and the clients, which only count, have the others. 32 streams are open.

delay    the engine steps at the pace of a real one; from the moment before a step's message is written until the client
         has each of its events
flat out the engine steps as fast as the daemon reads: how many tokens one core streams, and what an event costs it

Tokens come alone, or in batches, as accepted drafts do: a batch is an event. Writes benchmarks/results/http.json and
http.md; exits 1 where a bound is not kept.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import uvloop
from rich.console import Console

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


class Client(asyncio.Protocol):
    """Sends one request, and counts what comes back without reading it closely."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._head = bytearray()
        self._tail = b""
        self._times: list[float] = []
        self.done: asyncio.Future[Streamed] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        """Ask."""
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Each event begins with a mark, which may come in two parts."""
        now = time.monotonic()
        text = self._tail + data
        self._times += [now] * text.count(_MARK)
        self._tail = text[-(len(_MARK) - 1) :]
        if len(self._head) < 4096:
            self._head += data
        if b"[DONE]" in text:
            self._end(complete=True)

    def connection_lost(self, _: Exception | None) -> None:
        """Perhaps before its end."""
        self._end(complete=False)

    def _end(self, *, complete: bool) -> None:
        if not self.done.done():
            name = bytes(self._head).partition(b'"id":"')[2].partition(b'"')[0].decode()
            times = self._times[:-1] if complete else self._times  # the last event is the mark of the end
            self.done.set_result(Streamed(name, times, complete))


async def measured(folder: Path, model: Path, *, batch: int, pause: float, tokens: int) -> Found:
    """One run: 32 streams of so many tokens."""
    times = folder / f"times-{batch}-{pause}"
    engine = [sys.executable, "-m", "benchmarks.null_engine", "--times", str(times), "--tokens", str(batch)]
    engine += ["--pause", str(pause)]
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) > 1:
        engine += ["--cpus", ",".join(map(str, cpus[1:]))]
    config = {"model": {"target": {"path": str(model), "name": "null"}}, "canary": {"enabled": False}}
    async with Daemon(folder, config, engine=engine, cpu=cpus[0]) as daemon:
        await _streams(daemon, tokens=_STREAMS)  # what is made at first use is made
        times.write_text("")
        before, began = _cpu_seconds(daemon.pid), time.monotonic()
        streamed = await _streams(daemon, tokens=tokens)
        seconds, cpu = time.monotonic() - began, _cpu_seconds(daemon.pid) - before
    return Found(batch, pause, tokens * _STREAMS, seconds, cpu, _delays(streamed, times.read_text()))


async def _streams(daemon: Daemon, *, tokens: int) -> list[Streamed]:
    body = json.dumps({"prompt": _PROMPT, "max_tokens": tokens, "stream": True, "ignore_eos": True})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    request = f"{head}\r\n\r\n{body}".encode()
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: Client(request), "127.0.0.1", daemon.port)
        for _ in range(_STREAMS)
    ]
    streamed = await asyncio.gather(*(client.done for _, client in made))
    for transport, _ in made:
        transport.close()
    assert all(one.complete for one in streamed), f"a stream broke off: {daemon.log.read_text()[-2000:]}"
    return list(streamed)


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


async def _all(folder: Path, say: Callable[[str], None], scale: float) -> list[Found]:
    model = demo_directory(cache_dir())
    found = []
    for batch, pause, tokens in ((1, _PAUSE, 500), (4, _PAUSE, 2000), (1, 0.0, 10_000), (4, 0.0, 40_000)):
        say(f"events of {batch}, a pause of {pause:g} s")
        found.append(await measured(folder, model, batch=batch, pause=pause, tokens=int(tokens * scale)))
    return found


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="make bench-http", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the length of all runs")
    parser.add_argument("--out", type=Path, default=_RESULTS, help="folder for http.json and http.md")
    args = parser.parse_args()
    console = Console(stderr=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = runner.run(_all(Path(folder), console.print, args.scale))
    lines = page(found)
    Console().print("\n".join(lines), markup=False, soft_wrap=True)
    figures = {"streams": _STREAMS, "runs": [asdict(one) | {"rate": one.rate} for one in found]}
    write(args.out, "http", "make bench-http", figures, lines, about="an engine that computes nothing")
    return 0 if all(held for _, held in bounds(found)) else 1


if __name__ == "__main__":
    sys.exit(main())
