"""`make bench`: the engine against transformers' own `generate`, in one run, interleaved, medians.

Writes benchmarks/results/engine.json and engine.md with the command that made them.
"""

import argparse
import gc
import statistics
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.claims import Claim
from benchmarks.contenders import Generate, Ours, Prompts, encode
from benchmarks.paper import section, write
from benchmarks.where import Shares, where_time_goes
from specd.bench.prompts import prompts
from specd.models.cache import cache_dir
from specd.models.resolve import resolve_target

_RESULTS = Path(__file__).parent / "results"
_COPY_CLIENTS = 4  # copy prompts, one after another: one prompt alone would make a lucky or an unlucky figure


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument(
        "--repeats", type=int, default=3, help="rounds; each figure is their median (default 3)"
    )
    parser.add_argument("--tokens", type=_positive, default=128, help="new tokens per prompt (default 128)")
    parser.add_argument("--out", type=Path, default=_RESULTS, help="folder for engine.json and engine.md")
    args = parser.parse_args()
    path = resolve_target("demo")
    mixed = encode(path, [prompt.text for prompt in islice(prompts("mixed"), 16)])
    copy = encode(path, [prompt.text for prompt in islice(prompts("copy"), _COPY_CLIENTS)])
    # As generate: prompts anew, and all at once.
    ours = Ours(path, cache_dir() / "kernels", prefix_cache=False, rows_beside_decodes=0)
    generate = Generate(path)
    gc.freeze()  # as the engine process does: what loading left behind is not looked through again and again
    speeds = _measure(_contests(generate, ours, mixed, copy, args.tokens), args.repeats)
    ours.plain()
    where = {f"{n} running": where_time_goes(ours, mixed[:n], args.tokens) for n in (1, 4, 16)}
    claims = [*_claims(speeds), *_claims_of_steps(where)]
    _print(speeds, claims, where)
    _write(args, speeds, claims, where, [len(p) for p in mixed])
    return 0


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


Contest = dict[str, Callable[[], float]]


def _contests(generate: Generate, ours: Ours, mixed: Prompts, copy: Prompts, tokens: int) -> Contest:
    """Name -> tokens per second of one run."""

    def rate(seconds: float, count: int) -> float:
        return count * tokens / seconds

    def plain(batch: Prompts) -> float:
        ours.plain()
        return rate(ours.seconds(batch, tokens), len(batch))

    def one_by_one(mode: Callable[[], None]) -> float:
        mode()
        return rate(sum(ours.seconds([prompt], tokens) for prompt in copy), len(copy))

    return {
        "generate, 1": lambda: rate(generate.seconds(mixed[:1], tokens), 1),
        "plain, 1": lambda: plain(mixed[:1]),
        "generate, 16": lambda: rate(generate.seconds(mixed, tokens), 16),
        "plain, 16": lambda: plain(mixed),
        "plain, 1, copy": lambda: one_by_one(ours.plain),
        "lookup, 1, copy": lambda: one_by_one(ours.adaptive),
    }


def _measure(contests: Contest, repeats: int) -> dict[str, list[float]]:
    speeds: dict[str, list[float]] = {name: [] for name in contests}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("warming up", total=(repeats + 1) * len(contests))
        for repeat in range(repeats + 1):
            for name, run in contests.items():
                progress.update(
                    task, description=f"{name} ({repeat} of {repeats})" if repeat else f"warming up {name}"
                )
                speed = run()
                if repeat:  # the first round is the warm-up
                    speeds[name].append(speed)
                progress.advance(task)
    return speeds


def _claims(speeds: dict[str, list[float]]) -> list[Claim]:
    median = {name: statistics.median(values) for name, values in speeds.items()}
    return [
        Claim("plain decoding, 1 request, against generate", median["plain, 1"], median["generate, 1"], 1.7),
        Claim(
            "plain decoding, 16 requests, against generate of 16",
            median["plain, 16"],
            median["generate, 16"],
            2.0,
        ),
        Claim(
            "prompt lookup on copies, 1 request, against plain",
            median["lookup, 1, copy"],
            median["plain, 1, copy"],
            2.0,
        ),
    ]


def _claims_of_steps(where: dict[str, Shares]) -> list[Claim]:
    one, sixteen = where["1 running"], where["16 running"]
    around = Claim(
        "milliseconds around the forward, of a step, 16 running",
        sixteen["around it"],
        sixteen["step"],
        0.15,
        at_most=True,
    )
    if "linears alone" not in one:
        return [around]
    step = Claim(
        "milliseconds of a step, against its linears alone, 1 running",
        one["step"],
        one["linears alone"],
        1.5,
        at_most=True,
    )
    return [step, around]


def _print(speeds: dict[str, list[float]], claims: list[Claim], where: dict[str, Shares]) -> None:
    console = Console()
    table = Table("claim", "ours", "other", "ratio", "bound", "", title="medians")
    for claim in claims:
        table.add_row(*claim.cells)
    console.print(table)
    names = list(next(iter(where.values())))
    shares = Table("milliseconds of a plain decode step", *names, title="where the time goes")
    for load, row in where.items():
        shares.add_row(load, *(f"{row[name]:.2f}" for name in names))
    console.print(shares)
    console.print({name: [round(v, 1) for v in values] for name, values in speeds.items()})


def _write(
    args: argparse.Namespace,
    speeds: dict[str, list[float]],
    claims: list[Claim],
    where: dict[str, Shares],
    rows: list[int],
) -> None:
    command = f'make bench ARGS="--repeats {args.repeats} --tokens {args.tokens}"'
    figures = {
        "prompt_tokens": {"least": min(rows), "median": statistics.median(rows), "most": max(rows)},
        "tokens_per_second": speeds,
        "claims": [claim.document() for claim in claims],
        "step_milliseconds": where,
    }
    write(args.out, "engine", command, figures, _page(claims, where))


def _page(claims: list[Claim], where: dict[str, Shares]) -> list[str]:
    names = list(next(iter(where.values())))
    rows = [[load, *(f"{row[name]:.2f}" for name in names)] for load, row in where.items()]
    words = "Each figure is a median of one run in which the contenders take turns:"
    return [
        *section(words, ["claim", "ours", "other", "ratio", "bound", ""], [claim.cells for claim in claims]),
        *section("Milliseconds of a plain decode step:", ["", *names], rows),
    ]


if __name__ == "__main__":
    sys.exit(main())
