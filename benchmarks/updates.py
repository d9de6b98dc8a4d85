"""`make bench-updates`: what real changes of the demo target do to its drafts, and who notices.

A daemon first learns what is usual of the demo model with prompt lookup and the head in the package. Others go on from
what it knows: each is put under chats, changed in one way, and put under the same chats again, with the alarm alone
and, where the canary finds a fall, once more with drafting off for whoever fell. Writes updates.json and updates.md;
takes about twenty minutes beside the making of the targets, on a machine that does nothing else.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks import updates_targets as changed
from benchmarks.journal import Journal
from benchmarks.paper import write
from benchmarks.updates_daemon import Seen, Served, Setting, traffic
from benchmarks.updates_page import page
from specd.models.cache import cache_dir
from specd.models.drafts import shipped_heads
from specd.models.resolve import demo_directory

_RESULTS: Final = Path(__file__).parent / "results"
_LEARNED: Final = 1
_CHATS: Final = 2  # seeds of the prompts: those that are learned from, and those before and after
_MORE: Final = 3
_SAID: Final = ("changed", "seconds", "target_revision", "draft_revision", "canary")
"""What is kept of an update's answer: the rest names directories."""
_PATIENCE: Final = (
    4  # times the requests: as many more, in which the alarm is waited for where it has a reason
)

Change = Callable[[Served, Setting], Awaitable[dict[str, Any]]]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A change, and how it is made."""

    name: str
    target: Callable[[Path], Path] | None = None
    """Makes the changed target in this directory; None stays with the demo model."""
    head: Callable[[Path], Path] | None = None
    """The same of the head."""
    quantization: str = "none"
    how: Change | None = None
    """None: the daemon is started anew."""


async def _to_path(daemon: Served, setting: Setting) -> dict[str, Any]:
    return await daemon.asked("POST", "/admin/v1/target", {"path": str(setting.target)})


async def _by_reload(daemon: Served, setting: Setting) -> dict[str, Any]:
    daemon.write(setting.sections())
    await daemon.asked("POST", "/admin/v1/reload")
    return await daemon.asked("GET", "/admin/v1/target")


def cases(demo: Path, head: Path) -> list[Case]:
    """All of them."""
    return [
        Case("the same weights, saved again", lambda at: changed.resaved(demo, at), how=_to_path),
        Case("int8 linears", quantization="int8", how=_by_reload),
        Case("another chat template", lambda at: changed.retemplated(demo, at), how=_to_path),
        Case(
            "fine-tuned; head of the revision before", lambda at: changed.fine_tuned(demo, at), how=_to_path
        ),
        Case("random head, after a restart", head=lambda at: changed.random_head(head, at)),
    ]


class Bench:
    """Daemons one after the other, in a folder."""

    def __init__(self, folder: Path, before: Setting, learned: int, requests: int) -> None:
        """learned: requests from which it is known what is usual; requests: before a change, and after."""
        self._folder, self._before = folder, before
        self._learned, self._requests = learned, requests

    def row(self, case: Case) -> Row:
        """One change. With a reaction only where the canary has found something to react to."""
        after = self._changed(case)
        found: Row = {"name": case.name, "alert": self._run(case, after, "alert"), "off": None}
        if any(one["verdict"] == "bad" for one in found["alert"]["update"]["canary"]):
            found["off"] = self._run(case, after, "off")
        return found

    def _changed(self, case: Case) -> Setting:
        target = (
            self._before.target if case.target is None else self._made(f"{case.name}/target", case.target)
        )
        head = self._before.head if case.head is None else self._made(f"{case.name}/head", case.head)
        return Setting(target, head, quantization=case.quantization)

    def _made(self, name: str, make: Callable[[Path], Path]) -> Path:
        """Whole or not at all: a run that was killed here begins anew."""
        made, half = self._folder / "made" / name, self._folder / "half"
        if not made.exists():
            _say(f"  making {name}")
            shutil.rmtree(half, ignore_errors=True)
            made.parent.mkdir(parents=True, exist_ok=True)
            make(half).rename(made)
        return made

    def _run(self, case: Case, after: Setting, reaction: str) -> Row:
        folder = self._folder / "runs" / f"{case.name}, {reaction}"
        shutil.rmtree(folder, ignore_errors=True)
        state = folder / "state"
        shutil.copytree(self._usual(), state)
        first, second = replace(self._before, reaction=reaction), replace(after, reaction=reaction)
        began = time.monotonic()
        found = asyncio.run(_one(case, folder, state, (first, second), self._requests))
        _say(f"  {reaction}: {time.monotonic() - began:.0f} s")
        return found

    def _usual(self) -> Path:
        """What a daemon has learned of the demo model: its canary, and the baselines of its detectors."""
        state = self._folder / "usual"
        if not state.exists():
            _say("  learning what is usual")
            asyncio.run(_learn(self._folder / "learning", self._before, self._learned))
            shutil.copytree(
                self._folder / "learning" / "state", state, ignore=shutil.ignore_patterns("alerts.db*")
            )
        return state


async def _learn(folder: Path, setting: Setting, requests: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    async with Served(folder, setting, folder / "state") as daemon:
        await daemon.asked("POST", "/admin/v1/target/canary")
        await traffic(daemon, requests, _LEARNED)


async def _one(
    case: Case, folder: Path, state: Path, settings: tuple[Setting, Setting], requests: int
) -> Row:
    before, after = settings
    async with Served(folder, before, state) as daemon:
        usual = await traffic(daemon, requests, _CHATS)
        if case.how is not None:
            update = await case.how(daemon, after)
            return await _shown(daemon, usual, update, requests)
    async with Served(folder, after, state) as daemon:
        update = await daemon.judged_at_start()
        return await _shown(daemon, usual, update, requests)


async def _shown(daemon: Served, usual: Seen, update: dict[str, Any], requests: int) -> Row:
    """What clients saw before, what was said of the change, and what they see after it."""
    after = await _after(daemon, update, requests)
    said = {key: update[key] for key in _SAID if key in update}
    return {"before": usual.document(), "update": said, "after": after}


async def _after(daemon: Served, update: dict[str, Any], requests: int) -> dict[str, Any]:
    """The same chats again. Where the canary has found a fall and nobody reacts, others until live traffic shows it."""
    later = await traffic(daemon, requests, _CHATS, watch=True)
    waits = later.alert_requests is None and daemon.setting.reaction == "alert"
    if waits and any(one["verdict"] == "bad" for one in update["canary"]):
        more = await traffic(daemon, _PATIENCE * requests, _MORE, watch=True, until_alarmed=True)
        if more.alert_requests is not None and more.alert_seconds is not None:
            later.alert_requests = requests + more.alert_requests
            later.alert_seconds = later.seconds + more.alert_seconds
    return later.document()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201  progress


@contextmanager
def _folder(path: Path | None) -> Iterator[Path]:
    if path is not None:
        yield path.resolve()
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def main() -> int:
    """Measure, row by row; a row that fails is told of, and the others go on."""
    args = _arguments()
    asked = {"learned": args.learned, "requests": args.requests}
    try:
        journal = Journal(args.out / "updates.partial.jsonl", asked, resume=args.resume)
    except ValueError as fault:
        _say(str(fault))
        return 2
    demo, (head, *_) = demo_directory(cache_dir()), shipped_heads()
    with _folder(args.folder) as folder:
        bench = Bench(folder, Setting(demo, head), args.learned, args.requests)
        found = [row for case in cases(demo, head) if (row := _row(bench, case, journal)) is not None]
    if not found:
        return 1
    command = f'make bench-updates ARGS="--learned {args.learned} --requests {args.requests}"'
    write(args.out, "updates", command, {"asked": asked, "rows": found}, page(found))
    if len(found) < len(cases(demo, head)):
        return 1
    journal.finish()
    return 0


def _row(bench: Bench, case: Case, journal: Journal) -> Row | None:
    _say(f"{case.name}{', known' if journal.knows(case.name) else ''}")
    try:
        row: Row = journal.measured(case.name, lambda: bench.row(case))
    except Exception as fault:  # noqa: BLE001  whatever it is, the other rows are worth having
        _say(f"  failed: {fault!r}")
        return None
    return row


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-updates", description=__doc__)
    option = parser.add_argument
    option("--learned", type=int, default=60, help="requests that baselines are learned from (default 60)")
    option("--requests", type=int, default=40, help="before each change, and after it (default 40)")
    option("--folder", type=Path, help="where changed targets and logs are kept; default: nowhere")
    option("--resume", action="store_true", help="go on from what a run with the same options left behind")
    option("--out", type=Path, default=_RESULTS, help="folder of the results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
