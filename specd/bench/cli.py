"""`specd bench`: load on an OpenAI-compatible server, and what it answered with."""

import asyncio
import json
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from specd.bench import plot
from specd.bench.client import Server, connect
from specd.bench.load import closed_loop
from specd.bench.prompts import MIXES, Prompt
from specd.bench.report import Answered, Asked, document, table
from specd.bench.sample import Level, Sample, Summary, summarize, whole
from specd.bench.stages import stages
from specd.cli.parser import INTERRUPTED, Arguments, Parser, describe
from specd.cli.values import count, counts, require_writable
from specd.errors import UserError

_CLIENTS = (1, 2, 4, 8)
_DEFAULT_URL = "http://127.0.0.1:8000"
_INTERRUPTED = 130
_TABLE_WIDTH = 112  # in less, digits would be cut off; a narrow terminal wraps the lines instead


@dataclass(slots=True)
class _Run:
    """What has been measured so far, of use after an interruption as well."""

    asked: Asked
    answered: Answered | None = None
    levels: list[Level] = field(default_factory=list)

    def summaries(self) -> list[Summary]:
        return [summarize(level) for level in self.levels if level.samples]


def add_arguments(parser: Parser) -> None:
    """Declare the options of `specd bench`."""
    describe(
        parser,
        "Load an OpenAI-compatible server: each client asks again when its last answer has ended.",
        """
        specd bench --concurrency 1,4,16 --mix copy,chat
        specd bench --ramp 1,4,16,48,16,4,1 --mix chat,copy
        specd bench --url https://llm.example/v1 --api-key-file key.txt --json out.json --plot out.png
        """,
        exits=INTERRUPTED,
    )
    option = parser.add_argument
    option(
        "--url",
        type=_url,
        default=_DEFAULT_URL,
        help="the server, with or without /v1 (default: %(default)s)",
    )
    option("--model", help="model to ask for (default: the first that the server lists)")
    load = parser.add_mutually_exclusive_group()
    load.add_argument(
        "--concurrency", type=counts, default=_CLIENTS, help="numbers of clients (default: 1,2,4,8)"
    )
    load.add_argument(
        "--ramp",
        type=counts,
        metavar="CLIENTS",
        help="phases of so many clients, such as 1,4,16,48,16,4,1, in which the traffic moves from the first mix to the"
        " second; one line a phase",
    )
    option(
        "--mix",
        type=_mixes,
        help=f"some of {','.join(MIXES)} (default: mixed; of a ramp two, default chat,copy)",
    )
    option(
        "--requests", type=count, help="requests per number of clients (default: 3 per client, at least 12)"
    )
    option("--max-tokens", type=count, default=128, help="new tokens of a request (default: %(default)s)")
    option("--seed", type=int, default=0, help="order and numbering of the prompts (default: %(default)s)")
    option("--json", type=Path, metavar="FILE", help="write the result as JSON")
    option("--plot", type=Path, metavar="FILE.png", help="write the result as a picture")
    option("--api-key-file", type=Path, metavar="FILE", help="file with the bearer key")


def run(args: Arguments) -> int:
    """Measure, then print and write what was measured, after Ctrl-C as well."""
    require_writable(args.json, args.plot)
    key = _api_key(args.api_key_file)
    measured = _Run(_asked(args))
    interrupted = False
    with _progress(measured.asked) as advance:
        try:
            asyncio.run(_measure(measured, args.url, key, args.model, advance))
        except KeyboardInterrupt:
            interrupted = True
    _publish(measured, args, interrupted=interrupted)
    return _INTERRUPTED if interrupted else 0


def _asked(args: Arguments) -> Asked:
    ramp = args.ramp is not None
    mix = args.mix or (("chat", "copy") if ramp else ("mixed",))
    if ramp and len(mix) > 2:
        raise UserError(f"--ramp moves from one mix to another: name two with --mix, not {len(mix)}.")
    return Asked(
        args.ramp if ramp else args.concurrency, mix, args.requests, args.max_tokens, args.seed, ramp=ramp
    )


async def _measure(
    measured: _Run, url: str, key: str | None, model: str | None, advance: Callable[[Level], None]
) -> None:
    asked = measured.asked
    async with connect(url, key, model, asked.max_tokens) as server:
        measured.answered = Answered(server.model, server.dialect)
        for level, asks in stages(asked):
            measured.levels.append(level)
            await _load(server, level, asks, asked.max_tokens, advance)


async def _load(
    server: Server, level: Level, asked: Iterator[Prompt], max_tokens: int, advance: Callable[[Level], None]
) -> None:
    def done(sample: Sample) -> None:
        level.samples.append(sample)
        advance(level)

    await closed_loop(lambda prompt: server.ask(prompt, max_tokens), asked, level.concurrency, done)


def _publish(measured: _Run, args: Arguments, *, interrupted: bool) -> None:
    """Print and write. Raises UserError when nothing was measured."""
    summaries = measured.summaries()
    if measured.answered is None or not summaries:
        raise UserError("Interrupted before the first request had ended: nothing was measured.")
    console = Console(width=max(Console().width, _TABLE_WIDTH))
    console.print(table(summaries))
    if measured.asked.ramp:
        ramp = whole(summaries)
        console.print(f"the whole ramp: {ramp.seconds:.1f} s, {ramp.tokens_per_second:.1f} tokens per s")
    if args.json:
        result = document(measured.asked, measured.answered, summaries, interrupted=interrupted)
        args.json.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    if args.plot:
        draw = plot.plot_ramp if measured.asked.ramp else plot.plot
        draw(summaries, args.plot)
    _explain_failures(summaries)


def _explain_failures(summaries: list[Summary]) -> None:
    """Say what went wrong; raises UserError when some level brought nothing but errors."""
    for summary in summaries:
        for message, times in summary.errors.items():
            sys.stderr.write(f"{summary.mix}, {summary.concurrency} clients: {times} failed: {message}\n")
    if hopeless := [s for s in summaries if s.failed == s.requests]:
        where = ", ".join(f"{s.mix} with {s.concurrency} clients" for s in hopeless)
        raise UserError(f"Not one request succeeded at {where}: see the reasons above.")


@contextmanager
def _progress(asked: Asked) -> Iterator[Callable[[Level], None]]:
    """A bar over all requests, on stderr, that names the level at work."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("warm-up", total=asked.requests_in_all)

        def advance(level: Level) -> None:
            progress.update(task, advance=1, description=f"{level.mix}, {level.concurrency} clients")

        yield advance


def _api_key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        key = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--api-key-file {path} cannot be read: {error}.") from error
    if not key:
        raise UserError(f"--api-key-file {path} is empty: put the key into it, or leave the option out.")
    return key


def _url(text: str) -> str:
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise ArgumentTypeError(f"{text!r} is not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ArgumentTypeError(f"{text!r} is not an address such as {_DEFAULT_URL}")
    return text


def _mixes(text: str) -> tuple[str, ...]:
    mixes = tuple(part.strip() for part in text.split(","))
    if unknown := [mix for mix in mixes if mix not in MIXES]:
        raise ArgumentTypeError(f"{unknown[0]!r} is not a mix: there are {', '.join(MIXES)}")
    return mixes
