"""Measurements as a table for people and as JSON for everything else."""

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import PurePath
from typing import Any

from rich.table import Table

from specd.bench.client import Dialect
from specd.bench.sample import Quantiles, Summary, whole
from specd.host import cpu_model
from specd.tables import figures

_COLUMNS = (
    "mix",
    "clients",
    "requests",
    "failed",
    "tokens\nper s",
    "TTFT\np50 ms",
    "\np95",
    "inter-token\np50 ms",
    "\np95",
    "\np99",
    "ms per\ntoken",
    "accept-\nance",
    "tokens\na round",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that shape the numbers. Addresses and paths are left out: results are passed around."""

    concurrency: tuple[int, ...]
    mix: tuple[str, ...]
    requests: int | None
    max_tokens: int
    seed: int
    ramp: bool = False
    """Whether the concurrencies are phases of one run, over which the traffic moves from the first mix to the last."""

    @property
    def requests_in_all(self) -> int:
        """Of all levels."""
        return (1 if self.ramp else len(self.mix)) * sum(map(self.requests_at, self.concurrency))

    def requests_at(self, concurrency: int) -> int:
        """Unless told, enough that every client is busy three times and no mean rests on a handful."""
        return max(12, 3 * concurrency) if self.requests is None else self.requests

    def command(self) -> str:
        """The command line that asks the same again."""
        parts = [
            "specd bench",
            f"--{'ramp' if self.ramp else 'concurrency'} {','.join(map(str, self.concurrency))}",
        ]
        parts.append(f"--mix {','.join(self.mix)}")
        if self.requests is not None:
            parts.append(f"--requests {self.requests}")
        parts += [f"--max-tokens {self.max_tokens}", f"--seed {self.seed}"]
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Answered:
    """Who was measured, and in which dialect."""

    model: str
    dialect: Dialect


def table(summaries: Sequence[Summary]) -> Table:
    """One line per mix and concurrency."""
    return figures(_COLUMNS, map(_cells, summaries))


def document(
    asked: Asked, answered: Answered, summaries: Sequence[Summary], *, interrupted: bool
) -> dict[str, Any]:
    """The JSON result. Times in seconds."""
    ramp = {"ramp": asdict(whole(summaries))} if asked.ramp else {}
    return {
        "command": asked.command(),
        "environment": environment(),
        # Some servers name a model by its path.
        "server": {"model": PurePath(answered.model).name, "dialect": asdict(answered.dialect)},
        "interrupted": interrupted,
        "levels": [asdict(summary) for summary in summaries],
        **ramp,
    }


def environment() -> dict[str, str | int | None]:
    """Facts on the machine that generated the load, none of which tells whose it is."""
    return {
        "specd": version("specd-llm"),
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
    }


def _cells(summary: Summary) -> list[str]:
    return [
        summary.mix,
        str(summary.concurrency),
        str(summary.requests),
        str(summary.failed),
        f"{summary.tokens_per_second:.1f}",
        *_milliseconds(summary.ttft, "p50", "p95"),
        *_milliseconds(summary.inter_token, "p50", "p95", "p99"),
        *_milliseconds(summary.per_token, "p50"),
        _number(summary.acceptance),
        _number(summary.tokens_per_round),
    ]


def _milliseconds(quantiles: Quantiles | None, *names: str) -> list[str]:
    return ["-" if quantiles is None else f"{getattr(quantiles, name) * 1e3:.1f}" for name in names]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
