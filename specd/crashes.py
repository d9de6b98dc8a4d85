"""What is kept of an engine that died: a file for each of the last deaths. No text of anybody's, and no secret."""

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from engine.api import Idle, Ready, Request, StepReport
from specd.alerts.events import utc
from specd.alerts.health import host_memory
from specd.errors import UserError
from specd.private import private
from specd.restarts import Death
from specd.threads import in_thread

log = logging.getLogger(__name__)

_KEPT: Final = 20
_SUMMARY: Final = ("id", "time", "reason", "text")
_NOT_KEPT: Final = ("rounds", "outputs", "cost_errors")
"""Of a step: who asked, and what was written for them."""


class CrashFiles:
    """The directory with the reports, the newest of which are kept. Blocking."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def names(self) -> list[str]:
        """The newest first."""
        return sorted((file.stem for file in self._directory.glob("*.json")), reverse=True)

    def read(self, name: str) -> dict[str, Any]:
        """Raises `UserError` where there is none of this name."""
        if name not in self.names():
            raise UserError(
                f"there is no crash report {name!r}: `specd crashes list` names those that there are"
            )
        try:
            report = json.loads((self._directory / f"{name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as fault:
            raise UserError(f"crash report {name} cannot be read: {fault}") from None
        if not isinstance(report, dict) or not all(isinstance(report.get(key), str) for key in _SUMMARY):
            raise UserError(f"crash report {name} is none of ours")
        return report

    def add(self, report: Mapping[str, Any]) -> None:
        """Write it whole or not at all, and forget the oldest. Raises `OSError`."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self._directory / f"{report['id']}.json"
        part = file.with_suffix(".part")
        with open(part, "w", encoding="utf-8", opener=private) as written:
            json.dump(report, written, indent=2)
        part.replace(file)
        for name in self.names()[_KEPT:]:
            (self._directory / f"{name}.json").unlink(missing_ok=True)

    def summaries(self) -> list[dict[str, Any]]:
        """Of each report what a list shows; those that cannot be read are left out."""
        found = []
        for name in self.names():
            with contextlib.suppress(UserError):
                found.append(self.read(name))
        return [{key: report[key] for key in _SUMMARY} for report in found]


class Crashes:
    """Writes a report of each death, and shows those that there are."""

    def __init__(self, directory: Path, context: Callable[[], Mapping[str, Any]]) -> None:
        """`context`: what served, to be added to each report."""
        self._files = CrashFiles(directory)
        self._context = context
        self._writing: set[asyncio.Task[None]] = set()
        self._count = 0
        self.recent: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        """Summaries, the newest first, those of an earlier daemon too."""

    async def start(self) -> None:
        """Look at what an earlier daemon has left."""
        try:
            found = await in_thread(self._files.summaries)
        except OSError as fault:
            log.warning("the crash reports of before cannot be read: %s", fault)
            return
        known = {one["id"] for one in self.recent}
        earlier = [one for one in found if one["id"] not in known]
        self.recent.extend(earlier[: _KEPT - len(self.recent)])  # a full deque would let the newest go

    @property
    def last(self) -> dict[str, Any] | None:
        """The newest summary."""
        return self.recent[0] if self.recent else None

    async def aclose(self) -> None:
        """Wait for what is being written."""
        await asyncio.gather(*self._writing)

    async def list(self) -> list[dict[str, Any]]:
        """Summaries, the newest first."""
        return await in_thread(self._files.summaries)

    async def show(self, name: str) -> dict[str, Any]:
        """A report. Raises `UserError`."""
        return await in_thread(self._files.read, name)

    def record(self, death: Death, step: StepReport | None, step_age: float | None) -> None:
        """Of an engine whose last step was this, so many seconds ago."""
        now = time.time()
        self._count += 1
        report = {
            "id": f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(now))}-{self._count:04d}",
            "time": utc(now),
            "reason": death.reason,
            "text": death.text,
            "ready_seconds": death.ready_seconds,
            **self._context(),
            "host_memory_available": host_memory(),
            "last_step": None if step is None else _numbers(step) | {"seconds_before": step_age},
            "last_lines": death.last_lines,
        }
        self.recent.appendleft({key: report[key] for key in _SUMMARY})
        task = asyncio.create_task(self._write(report))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, report: Mapping[str, Any]) -> None:
        try:
            await in_thread(self._files.add, report)
        except OSError as fault:
            log.error("the crash report %s could not be kept: %s", report["id"], fault)  # noqa: TRY400
        else:
            log.error("crash report %s: `specd crashes show` prints it", report["id"])


class CrashWitness:
    """Remembers the last step of an engine, for the report of its death."""

    def __init__(self, crashes: Crashes, clock: Callable[[], float] = time.monotonic) -> None:
        self._crashes = crashes
        self._clock = clock
        self._step: StepReport | None = None
        self._at = 0.0

    def ready(self, _: Ready) -> None:
        """A new engine has not stepped yet."""
        self._step = None

    def submitted(self, request: Request, admitted: float) -> None:
        """Nothing that is kept."""

    def step(self, report: StepReport) -> None:
        """The last one so far."""
        self._step, self._at = report, self._clock()

    def idle(self, _: Idle) -> None:
        """Well so far."""

    def died(self, death: Death) -> None:
        """Write it down."""
        age = None if self._step is None else round(self._clock() - self._at, 3)
        self._crashes.record(death, self._step, age)
        self._step = None


def _numbers(step: StepReport) -> dict[str, Any]:
    """What it says of the engine, without what it says of requests."""
    told = {name: value for name, value in structs.asdict(step).items() if name not in _NOT_KEPT}
    nested = {name: structs.asdict(told[name]) for name in ("phases", "kv")}
    return told | nested | {"load_state": step.load_state.name.lower()}
