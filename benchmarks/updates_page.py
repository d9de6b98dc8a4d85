"""What `benchmarks.updates` has found, as a page."""

from typing import Any, Final

from benchmarks.paper import section
from benchmarks.updates_daemon import TOKENS

_HEADER: Final = (
    *("change", "acceptance before, after", "canary: the head's change, 99 % interval", "time to alert"),
    *("update, seconds", "tokens/s before, after", "with the reaction"),
)


def page(rows: list[dict[str, Any]]) -> list[str]:
    """The table, in Markdown."""
    words = (
        f"Prompt lookup and the head in the package, two clients, the same chats before and after, {TOKENS} tokens "
        "each, greedy. Acceptance is that of position 1 over all who drafted. The canary compares contexts that are "
        "the same for both. Time to alert is from live traffic alone, without the canary; where that has found a fall, "
        "it is waited for in four times as many chats more. The reaction is drafting off "
        "for whoever the canary finds fallen (`drift.on_canary_fail = off`); where it finds nobody there is none."
    )
    return section(words, _HEADER, [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    alone, off = row["alert"], row["off"]
    before, after = alone["before"], alone["after"]
    alert = after["alert_requests"]
    seconds = alone["update"].get("seconds")
    return (
        row["name"],
        f"{_rate(before['acceptance'])}, {_rate(after['acceptance'])}",
        _canary(alone["update"]),
        "none" if alert is None else f"{alert} requests, {after['alert_seconds']:.0f} s",
        "-" if seconds is None else f"{seconds:.0f}",
        f"{before['throughput']:.0f}, {after['throughput']:.0f}",
        "-" if off is None else f"{off['after']['throughput']:.0f}",
    )


def _canary(update: dict[str, Any]) -> str:
    found = next((one for one in update["canary"] if one["proposer"] == "eagle"), None)
    if found is None:
        return "none"
    if found["change"] is None:
        return str(found["verdict"])
    return f"{found['verdict']}: {found['change']:+.3f} ({found['low']:+.3f} to {found['high']:+.3f})"


def _rate(value: float | None) -> str:
    return "nothing drafted" if value is None else f"{value:.2f}"
