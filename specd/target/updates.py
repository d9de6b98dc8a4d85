"""The target replaced while the daemon serves: another line is opened beside the one that serves, and taken over to.

open ──▶ check ──▶ switch ──▶ the old line ends its requests, and is kept for a rollback
└────────┴── any fault: the new line is ended, the old one never noticed
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from typing import Any, Final

from specd.config.schema import Config
from specd.config.target import TargetSection
from specd.errors import UpdateBusyError, UpdateError, UserError
from specd.flights import Refusal
from specd.supervisor import EngineFailedError
from specd.target.line import Identity, Line
from specd.target.lines import Lines

log = logging.getLogger(__name__)

_ENDED: Final = Refusal(
    "the target that this request was for is no longer kept; send it again", "target_changed"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an update or a rollback did."""

    changed: bool
    text: str
    """A sentence for people."""
    target_revision: str
    draft_revision: str
    seconds: float

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Last:
    """How the last attempt ended."""

    unix_time: float
    ok: bool
    text: str


class TargetUpdates:
    """The one path that every change of the target takes; one at a time."""

    def __init__(
        self,
        lines: Lines,
        *,
        make: Callable[[TargetSection], Line],
        config: Callable[[], Config],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """make: a line that is not opened yet. config: the one in force. clock: gives Unix seconds."""
        self._lines = lines
        self._make = make
        self._config = config
        self._clock = clock
        self._lock = asyncio.Lock()
        self._doing = ""
        self._task: asyncio.Task[Outcome] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._before: TargetSection | None = None
        self.last: Last | None = None

    async def update(self, path: str, revision: str | None = None) -> Outcome:
        """Serve the target at this path, named as `model.target.path` is; revision: what to call it, None for its
        fingerprint. Raises `UpdateError` and keeps the old one where anything is wrong with it, `UpdateBusyError`
        during another update.
        """
        target = self._lines.current.target.model_copy(update={"path": path, "revision": revision or ""})
        return await self._one_at_a_time(f"update to {path}", lambda: self._replace(target))

    async def rollback(self) -> Outcome:
        """Serve the previous target again: at once while its engine is kept, else as an update does. Raises as
        `update` does.
        """
        return await self._one_at_a_time("rollback", self._roll_back)

    def snapshot(self) -> dict[str, Any]:
        """For people: what serves, what a rollback would serve, what is going on, how the last attempt ended."""
        before, kept = self._before, self._lines.previous
        return {
            "current": _line_as_json(self._lines.current, self._config()),
            "previous": (
                _line_as_json(kept, self._config())
                if kept is not None
                else None
                if before is None
                else {"path": before.path, "kept": False}
            ),
            "doing": self._doing or None,
            "last": None if self.last is None else asdict(self.last),
        }

    async def aclose(self) -> None:
        """Give up what is going on. The lines are their owner's to end."""
        tasks = [task for task in (self._task, self._keeping) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one_at_a_time(self, what: str, do: Callable[[], Coroutine[Any, Any, Outcome]]) -> Outcome:
        if self._lock.locked():
            raise UpdateBusyError(
                f"the target is being changed already ({self._doing}): wait for that, then ask again"
            )
        async with self._lock:
            self._doing = what
            self._task = asyncio.create_task(do())
            try:
                outcome = await asyncio.shield(self._task)  # it goes on when whoever asked has left
            except (UserError, EngineFailedError) as error:
                log.error("%s refused, the target stays as it is: %s", what, error)  # noqa: TRY400  a sentence
                self.last = Last(self._clock(), ok=False, text=str(error))
                raise UpdateError(str(error)) from None
            finally:
                self._doing = ""
            log.info("%s: %s", what, outcome.text)
            self.last = Last(self._clock(), ok=True, text=outcome.text)
            return outcome

    async def _replace(self, target: TargetSection) -> Outcome:
        began = time.monotonic()
        if self._lines.identity(self._config()) is None:
            raise UserError("the first target is still loading: ask again once it serves")
        line = self._make(target)
        try:
            await line.find()
            await line.read()
            if line.identity(self._config()) == self._lines.identity(self._config()):
                await line.end(_ENDED)
                return self._outcome(began, f"{target.path} is what is served already", changed=False)
            await self._forget_previous()
            line.start()
            await line.ready()
        except BaseException:
            await line.end(_ENDED)
            raise
        return self._switch(line, began, "serves now")

    async def _roll_back(self) -> Outcome:
        began = time.monotonic()
        kept = self._lines.previous
        if kept is not None and kept.supervisor.info is not None:
            return self._switch(kept, began, "serves again")
        if self._before is None:
            raise UserError("there is no previous target: nothing was updated since the start")
        return await self._replace(self._before)

    def _switch(self, line: Line, began: float, what: str) -> Outcome:
        self._stop_keeping()
        left = self._lines.current
        self._before = left.target
        self._lines.switch(line)
        self._keeping = asyncio.create_task(self._keep(left))
        return self._outcome(began, f"{line.target.path} {what}; {left.target.path} is kept for a rollback")

    async def _keep(self, line: Line) -> None:
        """Let the requests in it end, and end it once it has been kept for long enough."""
        await line.supervisor.flights.empty()
        await asyncio.sleep(self._config().model.target.update.keep_seconds)
        await self._drop(line)

    async def _drop(self, line: Line) -> None:
        self._lines.previous = None
        await line.end(_ENDED)

    async def _forget_previous(self) -> None:
        """Make room: three targets at a time are too many."""
        self._stop_keeping()
        if self._lines.previous is not None:
            previous = self._lines.previous
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config().server.drain_seconds):
                    await previous.supervisor.flights.empty()
            await self._drop(previous)

    def _stop_keeping(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()

    def _outcome(self, began: float, text: str, *, changed: bool = True) -> Outcome:
        identity = self._lines.identity(self._config())
        assert identity is not None, "only what is known serves"
        seconds = round(time.monotonic() - began, 3)
        return Outcome(changed, text, identity.target_revision, identity.draft_revision, seconds)


def _line_as_json(line: Line, config: Config) -> dict[str, Any]:
    identity: Identity | None = line.identity(config)
    return {
        "path": line.target.path,
        "target_revision": None if identity is None else identity.target_revision,
        "draft_revision": None if identity is None else identity.draft_revision,
        "quantization": None if identity is None else identity.quantization,
        "kept": True,
        "requests": len(line.supervisor.flights),
    }
