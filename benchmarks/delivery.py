"""`make bench-delivery`: are alerts lost, doubled or put out of order while everything around them fails?

A real daemon is told of alerts over its admin listener, each of which fires and ends, and is killed with SIGKILL again
and again meanwhile. Two of its receivers are webhooks that fail one time in five, half of those with 503 and half by
taking the message and never saying so; one of them takes groups, the other each alert alone. The third is a real
mosquitto that is restarted. The daemon's engine is one that never gets ready: the alarm needs none. Writes
benchmarks/results/delivery.json and delivery.md.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from benchmarks.failing import Broker, Copy, Daemon, Hook
from benchmarks.paper import section, write

_RESULTS: Final = Path(__file__).parent / "results"
_HEADER: Final = (
    "receiver",
    "alerts",
    "lost",
    "out of order",
    "notices",
    "taken twice or more",
    "extra copies",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is done."""

    alerts: int
    kills: int
    restarts: int
    """Of the broker; 0 leaves it out."""
    seed: int


@dataclass(frozen=True, slots=True)
class Told:
    """What came of it at one receiver. Each alert has two notices: it fires, and it ends."""

    receiver: str
    alerts: int
    lost: int
    """Alerts that the daemon had taken, and of which a notice never came."""
    disordered: int
    """Alerts whose end came before their beginning."""
    notices: int
    repeated: int
    """Notices that came more than once."""
    extra: int
    """How often in all."""

    @property
    def cells(self) -> tuple[str, ...]:
        """For a table."""
        return tuple(str(value) for value in asdict(self).values())


def judge(receiver: str, taken: set[str], copies: list[Copy]) -> Told:
    """`taken`: fingerprints of the alerts whose test was answered; copies in the order in which they came."""
    of_notice = Counter((copy.fingerprint, copy.status) for copy in copies)
    first: dict[str, list[str]] = {}
    for copy in copies:
        seen = first.setdefault(copy.fingerprint, [])
        if copy.status not in seen:
            seen.append(copy.status)
    return Told(
        receiver,
        alerts=len(taken),
        lost=sum(set(first.get(one, ())) != {"firing", "resolved"} for one in taken),
        disordered=sum(seen[0] != "firing" for seen in first.values()),
        notices=len(of_notice),
        repeated=sum(count > 1 for count in of_notice.values()),
        extra=sum(count - 1 for count in of_notice.values()),
    )


async def run(asked: Asked, directory: Path, model: str = "demo") -> dict[str, Any]:
    """Do it; the page's numbers. `model` is only looked at, never loaded."""
    alone, grouped = Hook(asked.seed), Hook(asked.seed + 1)
    broker = Broker(directory) if asked.restarts else None
    async with alone, grouped:
        if broker is not None:
            await broker.start()
        daemon = Daemon(
            directory,
            model,
            {"alone": alone.url, "grouped": grouped.url},
            None if broker is None else broker.url,
        )
        try:
            taken = await _under_fire(asked, daemon, broker)
            copies = {"alone": alone.copies, "grouped": grouped.copies}
            if broker is not None:
                copies["mqtt"] = broker.copies
            arrived = await _all_arrive(taken, copies)
        finally:
            await daemon.end()
            if broker is not None:
                await broker.end()
    return {
        "asked": asdict(asked),
        "kills": daemon.kills,
        "broker_restarts": broker.restarts if broker is not None else 0,
        "all_arrived_seconds": arrived,
        "failed_attempts": {"alone": alone.failed, "grouped": grouped.failed},
        "told": [asdict(judge(name, taken, found)) for name, found in copies.items()],
    }


async def _under_fire(asked: Asked, daemon: Daemon, broker: Broker | None) -> set[str]:
    """Raise the alerts, some in each life of the daemon, and end each life at a moment that chance gives."""
    taken: set[str] = set()
    number = 0
    for life in range(asked.kills + 1):
        await daemon.start()
        upto = asked.alerts * (life + 1) // (asked.kills + 1)
        killing = asyncio.ensure_future(daemon.kill_soon()) if life < asked.kills else None
        if (
            broker is not None
            and life * asked.restarts // asked.kills < (life + 1) * asked.restarts // asked.kills
        ):
            await broker.restart()
        while number < upto:
            answer = await daemon.raise_alert(number)
            if answer is None:
                break
            taken.add(answer)
            number += 1
        if killing is not None:
            await killing
    while number < asked.alerts:
        answer = await daemon.raise_alert(number)
        assert answer is not None, f"the last life of the daemon takes no alert: {daemon.log}"
        taken.add(answer)
        number += 1
    return taken


async def _all_arrive(
    taken: set[str], copies: Mapping[str, list[Copy]], patience: float = 240.0
) -> float | None:
    """Seconds until every receiver had both notices of every alert; None where that did not happen."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    wanted = {(one, status) for one in taken for status in ("firing", "resolved")}
    while loop.time() - began < patience:
        if all(wanted <= {(copy.fingerprint, copy.status) for copy in found} for found in copies.values()):
            return round(loop.time() - began, 1)
        await asyncio.sleep(0.1)
    return None


def page(found: Mapping[str, Any]) -> list[str]:
    """Lines of Markdown."""
    asked = found["asked"]
    rows = [Told(**one).cells for one in found["told"]]
    failed = " and ".join(f"{count} ({name})" for name, count in found["failed_attempts"].items())
    words = (
        f"{asked['alerts']} alerts, the daemon killed with SIGKILL {found['kills']} times, the broker restarted"
        f" {found['broker_restarts']} times, webhooks that fail one time in five: {failed} attempts failed. After the"
        f" last alert everything had arrived within {found['all_arrived_seconds']} s. A copy too many is a message that"
        " arrived though the daemon never heard so, and was sent again with the same id."
    )
    return section(words, _HEADER, rows)


def main() -> int:
    """Do it, print, write."""
    parser = argparse.ArgumentParser(prog="benchmarks.delivery", description=__doc__)
    parser.add_argument("--alerts", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20, help="SIGKILLs of the daemon")
    parser.add_argument("--restarts", type=int, default=10, help="of the broker; 0 leaves it out")
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--out", type=Path, default=_RESULTS, help="folder for delivery.json and delivery.md")
    args = parser.parse_args()
    asked = Asked(args.alerts, args.kills, args.restarts, args.seed)
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(run(asked, Path(directory)))
    lines = page(found)
    Console().print("\n".join(lines), markup=False)
    write(args.out, "delivery", "make bench-delivery", found, lines, about="alarm alone, no model")
    return 0 if found["all_arrived_seconds"] is not None else 1


if __name__ == "__main__":
    sys.exit(main())
