"""`make bench-router`: two real instances of llama.cpp's server, one with n-gram drafts, and `specd route` before them.

First both are asked directly, which tells up to which load speculation pays here; the router gets that as `off_above`.
Then all three take turns. At the end the speculating instance is killed under load. Writes
benchmarks/results/router.json and router.md with the command that made them.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

import httpx2
import tomli_w
from rich.console import Console

from benchmarks.peers import servers
from benchmarks.peers.environments import NoPeerError
from benchmarks.peers.servers import Contender, Running
from benchmarks.ports import free_port
from specd.bench.client import connect
from specd.bench.load import closed_loop
from specd.bench.prompts import prompts
from specd.bench.report import environment
from specd.bench.sample import Sample
from specd.models.cache import cache_dir
from specd.models.resolve import resolve_target

_RESULTS: Final = Path(__file__).parent / "results"
_LEVELS: Final = (1, 2, 4, 8, 16)
_NGRAM: Final = "--spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 5"
_MIX: Final = "copy"  # where lookups find something
_CLIENTS_AT_THE_KILL: Final = 4
_log = Console(stderr=True)

Rates = dict[str, dict[int, list[float]]]
"""Tokens per second by contender and number of clients, one a round."""


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="make bench-router", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="each figure is their median (default 3)")
    parser.add_argument("--tokens", type=int, default=96, help="new tokens per request (default 96)")
    parser.add_argument("--out", type=Path, default=_RESULTS, help="folder for router.json and router.md")
    args = parser.parse_args()
    folder, model = cache_dir() / "peers", resolve_target("demo")
    try:
        contenders = [
            servers.llama("speculating", folder, model, _NGRAM),
            servers.llama("plain", folder, model),
        ]
    except NoPeerError as reason:
        _log.print(f"llama.cpp cannot be made here: {reason}")
        return 1
    result = asyncio.run(_measure(contenders, args.rounds, args.tokens))
    page = _page(result)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "router.json").write_text(json.dumps(result, indent=2) + "\n")
    (args.out / "router.md").write_text(page)
    Console().print(page, markup=False, soft_wrap=True)
    return 0


async def _measure(contenders: Sequence[Contender], rounds: int, tokens: int) -> dict[str, Any]:
    scratch = servers.scratch()
    running = [Running(one) for one in contenders]
    try:
        for one in running:
            one.wait_ready()
        first = await _rounds({one.contender.name: one.url for one in running}, 1, tokens)
        off_above = _pays_up_to(first)
        _log.print(f"speculation pays up to {off_above} at once")
        router, admin = _router(running, scratch, off_above)
        running.append(router)
        router.wait_ready()
        rates = await _rounds({one.contender.name: one.url for one in running}, rounds, tokens)
        asked = httpx2.get(f"{admin}/admin/v1/status").json()["load"]["decisions"]
        killed = await _kill(running[0], router.url, tokens)
    finally:
        for one in running:
            one.end()
    return {
        "command": f'make bench-router ARGS="--rounds {rounds} --tokens {tokens}"',
        "date": datetime.now(UTC).date().isoformat(),
        "environment": environment(),
        "speculates_with": _NGRAM,
        "mix": _MIX,
        "off_above": off_above,
        "tokens_per_second": rates,
        "decisions": asked,
        "killed": killed,
    }


def _router(running: Sequence[Running], scratch: Path, off_above: int) -> tuple[Running, str]:
    """The router, and its admin listener."""
    speculating, plain = running
    port = free_port()
    config = {
        "admin": {"listen": f"127.0.0.1:{port}"},
        "router": {"speculating": speculating.url, "plain": plain.url, "check_seconds": 0.5},
        "policy": {"load": {"off_above": off_above, "resume_at": off_above}},
    }
    file = scratch / "router.toml"
    file.write_text(tomli_w.dumps(config))
    command = (str(Path(sys.executable).with_name("specd")), "route", "-c", str(file))
    contender = Contender("router", command, {"SPECD_SERVER__LISTEN": "127.0.0.1:{port}"}, ready="ready")
    return Running(contender), f"http://127.0.0.1:{port}"


async def _rounds(urls: Mapping[str, str], rounds: int, tokens: int) -> Rates:
    """The first one is the warm-up, and not counted, unless it is the only one."""
    rates: Rates = {name: defaultdict(list) for name in urls}
    for turn in range(rounds + 1):
        for name, url in urls.items():
            for level in _LEVELS:
                rate = await _rate(url, level, tokens, seed=turn)
                if turn:
                    rates[name][level].append(rate)
                    _log.print(f"round {turn}: {name} at {level}: {rate:.0f} tokens/s")
    return rates


async def _rate(url: str, clients: int, tokens: int, seed: int) -> float:
    samples: list[Sample] = []
    async with connect(url, None, None, 8) as server:
        asked = islice(prompts(_MIX, seed), max(8, 2 * clients))
        await closed_loop(lambda prompt: server.ask(prompt, tokens), asked, clients, samples.append)
    if errors := [sample.error for sample in samples if sample.error]:
        raise RuntimeError(f"{len(errors)} of {len(samples)} requests failed: {errors[0]}")
    begin, end = min(one.started for one in samples), max(one.ended for one in samples)
    return sum(one.tokens for one in samples) / (end - begin)


def _pays_up_to(rates: Rates) -> int:
    """The last number of clients, from the first on, at which the speculating instance is not slower."""
    best = 0
    for level in _LEVELS:
        if statistics.median(rates["speculating"][level]) < statistics.median(rates["plain"][level]):
            break
        best = level
    return max(best, 1)


async def _kill(victim: Running, url: str, tokens: int) -> dict[str, Any]:
    """What becomes of requests when the speculating instance dies in the middle of some."""
    samples: list[Sample] = []
    async with connect(url, None, None, 8) as server:
        asked = islice(prompts(_MIX, 99), 6 * _CLIENTS_AT_THE_KILL)
        load = asyncio.ensure_future(
            closed_loop(
                lambda prompt: server.ask(prompt, tokens), asked, _CLIENTS_AT_THE_KILL, samples.append
            )
        )
        await asyncio.sleep(1.0)  # some are under way
        killed_at = time.perf_counter()
        victim.end()
        await load
    later = [one for one in samples if one.started > killed_at]
    return {
        "requests": len(samples),
        "begun_later": len(later),
        "of_those_failed": sum(one.error is not None for one in later),
        "failed": dict(Counter(one.error for one in samples if one.error)),
    }


def _page(result: Mapping[str, Any]) -> str:
    rates, killed = result["tokens_per_second"], result["killed"]
    rows = [
        [name, *(f"{statistics.median(by_level[level]):.0f}" for level in _LEVELS)]
        for name, by_level in rates.items()
    ]
    best = {
        level: max(statistics.median(rates[name][level]) for name in ("speculating", "plain"))
        for level in _LEVELS
    }
    share = [f"{statistics.median(rates['router'][level]) / best[level]:.2f}" for level in _LEVELS]
    table = [["tokens/s with clients", *map(str, _LEVELS)], ["---"] * (len(_LEVELS) + 1), *rows]
    table.append(["router, of the better instance", *share])
    lines = "\n".join(f"| {' | '.join(row)} |" for row in table)
    return f"""# The router before two instances of llama.cpp

`{result["command"]}`, {result["date"]}

{lines}

Medians of the rounds; mix `{result["mix"]}`; the speculating instance with `{result["speculates_with"]}`. All three
processes run on the same machine all the time. `policy.load.off_above = {result["off_above"]}`, where the first round
had the speculating instance ahead. Decisions: {result["decisions"]}.

With {_CLIENTS_AT_THE_KILL} clients the speculating instance was killed (SIGKILL): of {killed["requests"]} requests
{killed["begun_later"]} began later, of which {killed["of_those_failed"]} failed. What failed in all:
{killed["failed"] or "nothing"}.
"""


if __name__ == "__main__":
    sys.exit(main())
