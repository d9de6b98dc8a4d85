"""`make bench-replay DATA=...`: ten minutes of each production trace, scaled to this host, against the live daemon.

The traces tell when requests came and how long prompts and answers were, not what they said: prompts are made of the
mixes of `specd bench`, code for the one trace and chat for the other. Lengths are multiplied, and so many requests are
left out, evenly, that plain decoding is busy for a given share of the time; what it bears is measured first. Requests
are sent when the trace says, whether or not earlier ones have ended. Writes benchmarks/results/replay.json, replay.md.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.journal import Journal
from benchmarks.paper import section, write
from benchmarks.peers import servers
from benchmarks.peers.servers import Running
from policies.simulate import Trace
from specd.bench.client import Server, connect
from specd.bench.load import closed_loop
from specd.bench.prompts import Prompt, texts
from specd.bench.sample import Level, Sample, summarize
from specd.errors import UserError
from specd.simulate.reading import read_trace

_RESULTS: Final = Path(__file__).parent / "results"
_TRACES: Final = {"azure_llm_code": "code", "azure_llm_conv": "chat"}
_QUEUE: Final = "[server]\nmax_queue = 100000"
_OFF: Final = "off"
_POLICIES: Final = {
    "goodput": 'kind = "goodput"',
    "load table": 'kind = "static"\nstatic_k = 8',
    _OFF: 'kind = "off"',
}
_CLIENTS: Final = 16  # at a time, where it is measured what the host bears
_CHARACTERS: Final = 4.4  # of a token in the mixes, about


class Timed(NamedTuple):
    """A request, and when it comes."""

    at: float  # seconds from the start
    prompt: Prompt
    tokens: int  # of the answer


@dataclass(frozen=True, slots=True)
class Scale:
    """What is done to a trace."""

    context: float
    generated: float
    load: float
    """Share of the time for which plain decoding would be busy."""
    minutes: float


@dataclass(frozen=True, slots=True)
class Replayed:
    """One trace under one policy. Times in seconds."""

    trace: str
    policy: str
    requests: int
    failed: int
    seconds: float
    tokens_per_second: float
    inter_token_mean: float
    inter_token_p99: float
    ttft_p50: float
    ttft_p99: float
    acceptance: float | None

    @property
    def cells(self) -> tuple[str, ...]:
        """For a table."""
        times = (self.inter_token_mean, self.inter_token_p99, self.ttft_p50, self.ttft_p99)
        return (
            self.trace,
            self.policy,
            f"{self.requests}",
            f"{self.failed}",
            f"{self.seconds:.0f}",
            f"{self.tokens_per_second:.1f}",
            *(f"{1e3 * seconds:.1f}" for seconds in times),
            "-" if self.acceptance is None else f"{self.acceptance:.2f}",
        )


_HEADER: Final = (
    *("trace", "policy", "requests", "failed", "seconds", "tokens/s", "inter-token mean, ms", "p99"),
    *("first token p50, ms", "p99", "acceptance"),
)


def main() -> int:
    """Measure, print, write."""
    args = _arguments()
    scale = Scale(args.context, args.generated, args.load, args.minutes)
    try:
        journal = Journal(args.out / "replay.partial.jsonl", asdict(scale), resume=args.resume)
        traces = {name: _window(read_trace(args.data / f"{name}.csv"), scale) for name in _TRACES}
    except (ValueError, UserError) as fault:
        print(fault, file=sys.stderr)  # noqa: T201  the answer of a command
        return 2
    kept, found = _Replay(traces, scale, journal, args.policies).measure()
    page = _page(scale, kept, found)
    Console().print("\n".join(page), soft_wrap=True)
    given = f"--minutes {scale.minutes:g} --context {scale.context:g} --generated {scale.generated:g}"
    given += f" --load {scale.load:g} --policies '{','.join(args.policies)}'"
    command = f'make bench-replay DATA=... ARGS="{given}"'
    figures = {"scale": asdict(scale), "kept": kept, "runs": [asdict(each) for each in found]}
    write(args.out, "replay", command, figures, page)
    journal.finish()
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-replay", description=__doc__)
    option = parser.add_argument
    option("--data", type=Path, required=True, help=f"folder of {' and '.join(f'{t}.csv' for t in _TRACES)}")
    option("--minutes", type=float, default=10.0, help="of each trace, from its beginning (default 10)")
    option("--context", type=float, default=1 / 8, help="factor on the length of prompts (default 0.125)")
    option("--generated", type=float, default=0.5, help="factor on the length of answers (default 0.5)")
    option(
        "--load", type=float, default=0.7, help="share of the time that plain decoding is busy (default 0.7)"
    )
    option("--policies", type=_policies, default=tuple(_POLICIES), help="some of them; off is always there")
    option("--resume", action="store_true", help="go on from what a run with the same options left behind")
    option("--out", type=Path, default=_RESULTS, help="folder of the results")
    return parser.parse_args()


def _policies(names: str) -> tuple[str, ...]:
    chosen = tuple(names.split(","))
    if unknown := [name for name in chosen if name not in _POLICIES]:
        raise argparse.ArgumentTypeError(f"there is no policy {unknown[0]!r}, only {', '.join(_POLICIES)}")
    return chosen


def _window(trace: Trace, scale: Scale) -> Trace:
    """The first minutes of it."""
    return trace.first(int(np.searchsorted(trace.arrival, 60 * scale.minutes)))


def scaled(trace: Trace, traffic_class: str, scale: Scale, share: float) -> Iterator[Timed]:
    """That share of the trace's requests, evenly, in words."""
    kinds = texts(traffic_class)
    number = 0
    for at, context, generated in zip(
        trace.arrival.tolist(), trace.context.tolist(), trace.generated.tolist(), strict=True
    ):
        due, number = number * share, number + 1
        if int(due + share) == int(due):
            continue
        prompt = _in_words(kinds, number, max(1, round(context * scale.context)))
        yield Timed(at, Prompt(traffic_class, prompt), max(1, round(generated * scale.generated)))


def _in_words(kinds: tuple[str, ...], number: int, tokens: int) -> str:
    """A request of about so many tokens: one of the mix behind others that have been answered, or the beginning of one.

    It begins with its number, so that no prefix of it is known.
    """
    last = kinds[number % len(kinds)]
    room = round(tokens * _CHARACTERS)
    if room <= len(last):
        return f"Task {number}. {last[:room]}"
    before = "\n".join(islice(cycle(kinds[number % len(kinds) :] + kinds), 1 + room // len(last)))
    return f"Task {number}. {before[: room - len(last)]}\n\n{last}"


class _Replay:
    """The daemons take turns, trace by trace; while one is measured the others are stopped."""

    def __init__(
        self, traces: dict[str, Trace], scale: Scale, journal: Journal, policies: Sequence[str]
    ) -> None:
        self._traces, self._scale, self._journal = traces, scale, journal
        self._policies = policies
        columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
        self._task = self._progress.add_task("starting the daemons", total=None)

    def measure(self) -> tuple[dict[str, float], list[Replayed]]:
        """The share of each trace's requests that was kept, and what every policy made of them."""
        folder = servers.scratch()
        contenders = [servers.ours(name, folder, f"{lines}\n{_QUEUE}") for name, lines in self._settings()]
        with servers.started(contenders) as daemons, self._progress:
            plain = daemons[-1]
            kept = {
                name: self._journal.measured(f"share of {name}", partial(self._share, name, plain))
                for name in self._traces
            }
            asked = {
                name: list(scaled(trace, _TRACES[name], self._scale, kept[name]))
                for name, trace in self._traces.items()
            }
            self._progress.update(self._task, total=len(daemons) * sum(map(len, asked.values())))
            found = [self._run(name, asked[name], daemon) for name in asked for daemon in daemons]
        return kept, found

    def _settings(self) -> Iterator[tuple[str, str]]:
        """Of each policy that is asked for; the last is none, by which it is found what the host bears."""
        return ((name, lines) for name, lines in _POLICIES.items() if name in {*self._policies, _OFF})

    def _share(self, name: str, plain: Running) -> float:
        """Of the requests, that keeps plain decoding busy for the share of time that is wanted."""
        trace = self._traces[name]
        self._progress.update(self._task, description=f"what this host bears of {name}")
        few = list(scaled(trace.first(3 * _CLIENTS), _TRACES[name], self._scale, 1.0))
        with _awake(plain):
            begin = time.perf_counter()
            asyncio.run(_closed(plain.url, few))
            bears = len(few) / (time.perf_counter() - begin)
        return min(1.0, self._scale.load * bears * trace.seconds / len(trace))

    def _run(self, name: str, asked: list[Timed], daemon: Running) -> Replayed:
        policy = daemon.contender.name
        self._progress.update(self._task, description=f"{name}, {policy}")
        key = f"{name}, {policy}"
        if self._journal.knows(key):
            self._progress.advance(self._task, len(asked))

        def replay() -> dict[str, Any]:
            with _awake(daemon):
                advance = lambda: self._progress.advance(self._task)  # noqa: E731
                return asdict(_summed(name, policy, asyncio.run(_open(daemon.url, asked, advance))))

        return Replayed(**self._journal.measured(key, replay))


@contextmanager
def _awake(daemon: Running) -> Iterator[None]:
    daemon.resume()
    try:
        yield
    finally:
        daemon.pause()


async def _closed(url: str, asked: Sequence[Timed]) -> None:
    """All requests, so many at a time. Warm-up included: it is short beside them."""
    tokens = {each.prompt: each.tokens for each in asked}
    async with connect(url, None, None, 8) as server:
        await closed_loop(lambda p: server.ask(p, tokens[p]), tokens, _CLIENTS, lambda _: None)


async def _open(url: str, asked: Sequence[Timed], done: Callable[[], None]) -> list[Sample]:
    """Each request at its time."""

    async def ask(server: Server, each: Timed, begin: float) -> Sample:
        await asyncio.sleep(max(0.0, begin + each.at - time.perf_counter()))
        sample = await server.ask(each.prompt, each.tokens)
        done()
        return sample

    async with connect(url, None, None, 8) as server:
        begin = time.perf_counter()
        waiting: list[Awaitable[Sample]] = [ask(server, each, begin) for each in asked]
        return list(await asyncio.gather(*waiting))


def _summed(trace: str, policy: str, samples: Sequence[Sample]) -> Replayed:
    level = Level(trace, 0)
    level.samples.extend(samples)
    summary = summarize(level)
    good = [sample for sample in samples if sample.error is None and sample.tokens > 1]
    between = sum(sample.arrivals[-1] - sample.arrivals[0] for sample in good)
    return Replayed(
        trace=trace,
        policy=policy,
        requests=summary.requests,
        failed=summary.failed,
        seconds=summary.seconds,
        tokens_per_second=summary.tokens_per_second,
        inter_token_mean=between / max(sum(sample.tokens - 1 for sample in good), 1),
        inter_token_p99=summary.inter_token.p99 if summary.inter_token else 0.0,
        ttft_p50=summary.ttft.p50 if summary.ttft else 0.0,
        ttft_p99=summary.ttft.p99 if summary.ttft else 0.0,
        acceptance=summary.acceptance,
    )


def _page(scale: Scale, kept: dict[str, float], found: Sequence[Replayed]) -> list[str]:
    shares = ", ".join(f"{share:.1%} of {name}" for name, share in kept.items())
    words = (
        f"{scale.minutes:g} minutes of each trace; prompts {scale.context:g} and answers {scale.generated:g} times as "
        f"long; kept of the requests, evenly, so that plain decoding is busy for about {scale.load:.0%} of the time: "
        f"{shares}. Load table: k = 8 under the default table. Mean and p99 of inter-token time: of all tokens, and of "
        "all arrivals of text:"
    )
    return section(words, _HEADER, [each.cells for each in found])


if __name__ == "__main__":
    sys.exit(main())
