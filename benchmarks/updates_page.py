"""What `benchmarks.updates` has found, as a page."""

from typing import Any


def page(results: list[dict[str, Any]], tokens: int) -> str:
    """The table, in Markdown. tokens: of each answer."""
    lines = [
        "# What changes of the target do to its drafts",
        "",
        "Made by `python -m benchmarks.updates`: the demo model with prompt lookup and the head in the package, two",
        f"clients, chats, {tokens} tokens each, greedy. Acceptance is that of position 1 over all who drafted. The",
        "canary compares the head's examined acceptance before and after, with its 99 % interval. Time to alert is",
        "from live traffic alone. The last column has drafting off where the canary says that a draft fell.",
        "",
        "| change | acceptance before, after | canary: head | time to alert | tokens/s before, after, with reaction |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_line, results)]) + "\n"


def _line(row: dict[str, Any]) -> str:
    alone, off = row["alert"], row["off"]
    before, after = alone["before"], alone["after"]
    alert = after["alert_requests"]
    when = "none" if alert is None else f"{alert} requests, {after['alert_seconds']:.0f} s"
    cells = (
        row["name"],
        f"{_rate(before['acceptance'])}, {_rate(after['acceptance'])}",
        _canary(alone["update"]),
        when,
        f"{before['throughput']:.0f}, {after['throughput']:.0f}, {off['after']['throughput']:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def _canary(update: dict[str, Any]) -> str:
    found = next((one for one in update.get("canary", ()) if one["proposer"] == "eagle"), None)
    if found is None:
        return "none"
    change = (
        ""
        if found["change"] is None
        else f" {found['change']:+.3f} ({found['low']:+.3f} to {found['high']:+.3f})"
    )
    return f"{found['verdict']}{change}"


def _rate(value: float | None) -> str:
    return "nothing drafted" if value is None else f"{value:.2f}"
