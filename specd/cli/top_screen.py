"""What `specd top` shows, as lines, made of the admin API's answers. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

_BAR: Final = 32  # characters of the longest


def screen(status: Mapping[str, Any], decisions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """status: of /admin/v1/status; decisions: of /admin/v1/decisions."""
    drafts = status["drafts"]
    yield from _head(status)
    for part in (
        _lengths(drafts["k"]),
        _acceptance(status["acceptance"], drafts["acceptance"]),
        _goodput(drafts["goodput"]),
        _decisions(decisions),
    ):
        yield ""
        yield from part


def _head(status: Mapping[str, Any]) -> Iterator[str]:
    model, load = status["model"], status["load"]
    up = timedelta(seconds=int(status["uptime_seconds"]))
    revisions = f"target {model['target_revision'] or '-'}   draft {model['draft_revision'] or '-'}"
    yield f"specd {status['version']}   {model['name']}   {revisions}   up {up}"
    yield status["unready_because"] or status["engine"]["state"]
    firing = status["alerts"]["firing"]
    yield (
        f"running {load['running']}   waiting {load['waiting']}   load {load['state']}   KV {_used(status['kv'])}   "
        f"{status['drafts']['tokens_per_second']:.1f} tokens/s   alerts {firing or 'none'}"
    )


def _used(kv: Mapping[str, int] | None) -> str:
    if kv is None:
        return "-"
    return f"{kv['used'] / max(sum(kv.values()), 1):.0%} used"


def _lengths(by_proposer: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    counts: dict[int, int] = {}
    for lengths in by_proposer.values():
        for name, rounds in lengths.items():
            counts[int(name)] = counts.get(int(name), 0) + rounds
    total = sum(counts.values())
    if not total:
        yield "no rounds yet"
        return
    yield f"k of the last {total} rounds"
    most = max(counts.values())
    for k, rounds in sorted(counts.items()):
        yield f"{k:>4}  {'█' * max(1, round(_BAR * rounds / most)):<{_BAR}}  {rounds / total:.0%}"
    drafted = {name: sum(lengths.values()) for name, lengths in by_proposer.items() if name != "none"}
    if drafted:
        names = sorted(drafted, key=lambda name: (-drafted[name], name))
        yield "drafted by: " + ", ".join(f"{name} {drafted[name] / total:.0%}" for name in names)


def _acceptance(
    classes: Mapping[str, float | None], by_proposer: Mapping[str, Mapping[str, float | None]]
) -> Iterator[str]:
    names = sorted({name for each in by_proposer.values() for name in each})
    rows = [
        [traffic_class, _number(value), *(_number(by_proposer[traffic_class].get(name)) for name in names)]
        for traffic_class, value in classes.items()
    ]
    yield from _table(["acceptance", "all", *names], rows)


def _goodput(arms: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    rows = [[arm["running"], _rate(arm["drafting"]), _rate(arm["plain"])] for arm in arms]
    yield from _table(["tokens/s of steps, by requests that decode", "drafting", "plain"], rows)


def _decisions(decisions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "the last decisions"
    for one in decisions:
        who = "" if one["proposer"] == "none" else f" by {one['proposer']}"
        yield f"  {one['request']} ({one['class']}): k = {one['k']}{who}; {one['text']}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        first, *rest = row
        cells = (f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True))
        yield "   ".join([f"{first:<{widths[0]}}", *cells])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
