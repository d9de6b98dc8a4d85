"""How `specd status` and `specd top` say the same things: lines of 80 columns where names are short. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from rich.console import Console
from rich.text import Text

GOOD: Final = "green"
WARN: Final = "yellow"
BAD: Final = "bold red"
TITLE: Final = "bold"

_LONGEST: Final = 18  # characters of a class: what else a line says is to fit into 80 columns
_STRATA: Final = 8  # of the most requests; `specd status --json` has them all

Status = Mapping[str, Any]
"""Of /admin/v1/status."""


def head(status: Status) -> Iterator[Text]:
    """Who it is, whether it serves, and what."""
    model, up = status["model"], timedelta(seconds=int(status["uptime_seconds"]))
    yield Text(f"specd {status['version']}   {model['name']}   up {up}", TITLE)
    why_not = status["unready_because"]
    loads = status["engine"]["state"] == "starting"
    yield Text(why_not, WARN if loads else BAD) if why_not else Text("serving", GOOD)
    yield Text(f"target {model['target_revision'] or '-'}   draft {model['draft_revision'] or '-'}")


def load(status: Status) -> Text:
    """What runs, and what that allows."""
    now = status["load"]
    return Text.assemble(
        f"running {now['running']}   waiting {now['waiting']}   load ",
        (now["state"], GOOD if now["state"] == "full" else WARN),
        f"   KV {used(status['kv'])}   {status['drafts']['tokens_per_second']:.1f} tokens/s",
    )


def alerts(counts: Mapping[str, int]) -> Text:
    """How many are open."""
    firing, pending = counts["firing"], counts["pending"]
    if not firing and not pending:
        return Text("none", GOOD)
    return Text(f"{firing} firing, {pending} pending", BAD if firing else WARN)


def observed(one: Mapping[str, Any]) -> Text:
    """An engine of others: what is wrong with it, or how it does."""
    name = short(one["name"])
    if one["fault"] is not None:
        return Text(f"{name}: {one['fault']}", BAD)
    if one["same_target"] == "no":
        return Text(f"{name}: another target answers, {one['target_revision']}", BAD)
    drafts = f"acceptance {number(one['acceptance'])}" if one["speculates"] else "does not speculate"
    doubt = "" if one["same_target"] == "yes" else ", not asked yet whether it is the known target"
    return Text(f"{name}: {one['target_revision']}, {drafts}{doubt}", WARN if doubt else GOOD)


def used(kv: Mapping[str, int] | None) -> str:
    """Share of the KV blocks."""
    return "-" if kv is None else f"{kv['used'] / max(sum(kv.values()), 1):.0%} used"


def lengths(by_proposer: Mapping[str, Mapping[str, int]]) -> dict[int, int]:
    """Rounds by k, whoever drafted, the shortest first."""
    counts: dict[int, int] = {}
    for of_one in by_proposer.values():
        for k, rounds in of_one.items():
            counts[int(k)] = counts.get(int(k), 0) + rounds
    return dict(sorted(counts.items()))


def reasons(counts: Mapping[str, int]) -> str:
    """The two that settled k most often."""
    total = sum(counts.values())
    most = sorted(counts.items(), key=lambda one: -one[1])[:2]
    return ", ".join(f"{reason.replace('_', ' ')} {times / total:.0%}" for reason, times in most)


def strata(drift: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """Acceptance of the first drafted token against its baseline, of what has most requests; nothing without any."""
    shown = sorted(drift, key=lambda one: (-len(one["wrong"]), -one["requests"]))[:_STRATA]
    rows = [
        [
            short(one["traffic_class"]),
            one["proposer"],
            one["temperature"],
            number(one["now"]),
            number(one["baseline"]),
            str(one["requests"]),
            ", ".join(one["wrong"]) or _evidence(one),
        ]
        for one in shown
    ]
    if not rows:
        return
    names = ["against baseline", "by", "sampling", "now", "before", "requests", "evidence"]
    title, *lines = table(names, rows, left=3, gap=2)
    yield title
    for line, one in zip(lines, shown, strict=True):
        line.stylize(BAD if one["wrong"] else "")
        yield line


def _evidence(one: Mapping[str, Any]) -> str:
    return "-" if one["score"] is None else f"{min(max(one['score'], 0.0), 1.0):.0%}"


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, gap: int = 3
) -> Iterator[Text]:
    """Aligned, with a title; the first columns, `left` of them, to the left, the others to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for place, row in enumerate((header, *rows)):
        cells = [
            f"{cell:<{width}}" if column < left else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield Text((" " * gap).join(cells).rstrip(), "" if place else TITLE)


def hung(console: Console, name: Text, value: Text | str, width: int) -> Iterator[Text]:
    """The name to the left, in so many columns; what does not fit beside it goes on below itself."""
    lines = (value if isinstance(value, Text) else Text(value)).wrap(console, console.width - width)
    for place, line in enumerate(lines):
        left = Text("") if place else name.copy()
        left.pad_right(width - left.cell_len)
        yield Text.assemble(left, line)


def short(name: str) -> str:
    """A name that clients make up."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def number(value: float | None) -> str:
    """An acceptance."""
    return "-" if value is None else f"{value:.2f}"


def rate(value: float | None) -> str:
    """Tokens per second."""
    return "-" if value is None else f"{value:.1f}"
