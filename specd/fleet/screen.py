"""What `specd fleet status` shows: lines of 80 columns, made of the document. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from specd.alerts.events import utc
from specd.cli import shown

_WIDE: Final = 12
_ACCEPTANCES: Final = 5  # classes in a line

Document = Mapping[str, Any]

Row = tuple[str, Text]
"""A node, and something about it that may need several lines."""


def head(fleet: Document) -> Iterator[Text]:
    """Who is there, and what came of the last update."""
    nodes = fleet["nodes"]
    there = sum(node["online"] is True for node in nodes)
    yield Text(
        f"{fleet['prefix']} at {fleet['broker']}: {_counted(len(nodes), 'node')}, {there} online", shown.TITLE
    )
    if fleet["crowded"]:
        yield Text("there are more nodes, or such with longer names, than are shown", shown.WARN)
    for update in fleet["updates"]:
        yield _update(update)
    if not fleet["updates"]:
        yield from _mixed(fleet["revisions"])


def table(fleet: Document, now: float) -> Iterator[Text]:
    """A line for every node."""
    names = ["node", "state", "target", "draft", "k", "load", "running", "told"]
    nodes = fleet["nodes"]
    if not nodes:
        return
    rows = [_row(node, now) for node in nodes]
    title, *lines = shown.table(names, rows, left=4, gap=2)
    yield title
    for line, node in zip(lines, nodes, strict=True):
        line.stylize(_mood(node))
        yield line


def details(fleet: Document) -> Iterator[tuple[str, list[Row]]]:
    """Under a title each: acceptance by class, who is behind, what fires, what cannot be read."""
    for title, say in (
        ("acceptance", _acceptance),
        ("not updated", _behind),
        ("alerts", _alerts),
        ("to look at", _trouble),
    ):
        rows = [(cut(node["node"]), text) for node in fleet["nodes"] for text in say(node)]
        if rows:
            yield title, rows


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _update(update: Mapping[str, Any]) -> Text:
    done = update["taken"] == update["online"]
    when = f", which {update['node']} took at {utc(update['unix_time'])}" if update["node"] else ""
    return Text(
        f"{shown.short(update['model'])} {shown.short(update['revision'])}{when}:"
        f" on {update['taken']} of {_counted(update['online'], 'online node')}",
        shown.GOOD if done else shown.BAD,
    )


def _mixed(revisions: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    """Where nobody tells of an update, nobody is behind; but they may differ."""
    models = [one["model"] for one in revisions]
    for one in revisions:
        if models.count(one["model"]) > 1:
            text = f"{shown.short(one['model'])} {shown.short(one['revision'])}: on {_counted(one['nodes'], 'node')}"
            yield Text(f"{text}; no update is known", shown.WARN)


def _row(node: Mapping[str, Any], now: float) -> list[str]:
    return [
        cut(node["node"]),
        cut("updating" if node["doing"] and node["online"] else node["standing"]),
        cut(node["target_revision"] or "-") + (" !" if node["taken"] is False else ""),
        cut(node["draft_revision"] or "-"),
        "-" if node["k"] is None else f"{node['k']:.1f}",
        node["load"] or "-",
        "-" if node["running"] is None else str(node["running"]),
        ago(node["told_at"], now) + (" !" if node["stale"] else ""),
    ]


def cut(text: str) -> str:
    """A name, where there is little room."""
    return text if len(text) <= _WIDE else f"{text[: _WIDE - 1]}…"


def ago(then: float | None, now: float) -> str:
    """In the largest unit of which there is more than one."""
    if then is None:
        return "-"
    seconds = max(0.0, now - then)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _mood(node: Mapping[str, Any]) -> str:
    if node["taken"] is False or node["faults"] or (node["alerts"] or {}).get("firing"):
        return shown.BAD
    return "" if node["standing"] == "serving" and not node["stale"] else shown.WARN


def _acceptance(node: Mapping[str, Any]) -> Iterator[Text]:
    known = {name: value for name, value in (node["acceptance"] or {}).items() if value is not None}
    if known and node["online"]:
        told = [
            f"{shown.short(name)} {shown.number(value)}" for name, value in list(known.items())[:_ACCEPTANCES]
        ]
        more = len(known) - len(told)
        yield Text("  ".join(told) + (f"  and {more} more" if more else ""))


def _behind(node: Mapping[str, Any]) -> Iterator[Text]:
    if node["taken"] is not False:
        return
    changed, refused = node["changed"], node["refused"]
    text = f"serves {node['target_revision']}"
    if node["online"] is not True:
        text += ", and is not online"
    if changed is not None and changed["by"] == "rollback":
        text += f", to which it was rolled back at {utc(changed['unix_time'])}"
    if node["doing"]:
        text += f"; under way: {node['doing']}"
    elif refused is not None:
        text += f"; at {utc(refused['unix_time'])} it was refused: {refused['text']}"
    yield Text(text, shown.BAD)


def _alerts(node: Mapping[str, Any]) -> Iterator[Text]:
    for alert in node["firing"] or ():
        yield Text(f"{alert['name']} since {alert['startsAt']}: {alert['summary']}", shown.BAD)


def _trouble(node: Mapping[str, Any]) -> Iterator[Text]:
    for fault in node["faults"]:
        yield Text(fault, shown.BAD)
    if node["standing"] == "not ready":
        yield Text(node["unready_because"] or "not ready", shown.WARN)
    if node["stale"]:
        yield Text("is online, and has not told its state for longer than it should", shown.WARN)
