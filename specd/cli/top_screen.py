"""What `specd top` shows, as lines, made of the admin API's answers. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from specd.cli import shown

_BAR: Final = 32  # characters of the longest


def screen(status: shown.Status, decisions: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """decisions: of /admin/v1/decisions. What a low terminal cuts off comes last."""
    drafts = status["drafts"]
    yield from shown.head(status)
    yield shown.load(status)
    yield Text.assemble("alerts ", shown.alerts(status["alerts"]))
    for part in (
        _lengths(drafts["k"]),
        shown.strata(status["drift"]),
        _decisions(decisions),
        _goodput(drafts["goodput"]),
        _acceptance(status["acceptance"], drafts["acceptance"]),
    ):
        lines = list(part)
        if lines:
            yield Text()
            yield from lines


def _lengths(by_proposer: Mapping[str, Mapping[str, int]]) -> Iterator[Text]:
    counts = shown.lengths(by_proposer)
    total = sum(counts.values())
    if not total:
        yield Text("no rounds yet")
        return
    yield Text(f"k of the last {total} rounds", shown.TITLE)
    most = max(counts.values())
    for k, rounds in counts.items():
        bar = "█" * max(1, round(_BAR * rounds / most))
        yield Text.assemble(f"{k:>4}  ", (f"{bar:<{_BAR}}", "cyan"), f"  {rounds / total:.0%}")
    drafted = {name: sum(lengths.values()) for name, lengths in by_proposer.items() if name != "none"}
    if drafted:
        names = sorted(drafted, key=lambda name: (-drafted[name], name))
        yield Text("drafted by: " + ", ".join(f"{name} {drafted[name] / total:.0%}" for name in names))


def _acceptance(
    classes: Mapping[str, float | None], by_proposer: Mapping[str, Mapping[str, float | None]]
) -> Iterator[Text]:
    names = sorted({name for each in by_proposer.values() for name in each})
    rows = [
        [
            shown.short(traffic_class),
            shown.number(value),
            *(shown.number(by_proposer[traffic_class].get(name)) for name in names),
        ]
        for traffic_class, value in classes.items()
    ]
    yield from shown.table(["acceptance", "all", *names], rows)


def _goodput(arms: Iterable[Mapping[str, Any]]) -> Iterator[Text]:
    rows = [[arm["running"], shown.rate(arm["drafting"]), shown.rate(arm["plain"])] for arm in arms]
    yield from shown.table(["tokens/s of steps, by requests that decode", "drafting", "plain"], rows)


def _decisions(decisions: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    yield Text("the last decisions", shown.TITLE)
    for one in decisions:
        who = "" if one["proposer"] == "none" else f" by {one['proposer']}"
        yield Text(f"  {one['request']} ({one['class']}): k = {one['k']}{who}; {one['text']}")
