"""The line that was left: it ends its requests, and waits for a rollback for as long as the config says."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, NamedTuple, Self

from specd.config.schema import Config
from specd.config.target import TargetSection
from specd.flights import Refusal
from specd.target.line import Line
from specd.target.lines import Lines
from specd.tasks import ended

ENDED: Final = Refusal(
    "the target that this request was for is no longer kept; send it again", "target_changed"
)
"""What is told to whoever is still in a line when it ends."""


class Before(NamedTuple):
    """What a rollback would serve."""

    line: Line
    fingerprint: str
    """Of its target. The line itself may have ended since, and other files may lie where that lay."""

    @classmethod
    def of(cls, line: Line, config: Config) -> Self:
        """What serves now."""
        identity = line.identity(config)
        assert identity is not None, "only what is known serves"
        return cls(line, identity.fingerprint)

    @property
    def target(self) -> TargetSection:
        """By where it lay, since a link that was followed may lead elsewhere by now."""
        return self.line.target.model_copy(update={"path": str(self.line.path)})


class Keeping:
    """Owner of how `Lines.previous` ends."""

    def __init__(self, lines: Lines, config: Callable[[], Config]) -> None:
        self._lines = lines
        self._config = config
        self._task: asyncio.Task[None] | None = None

    def begin(self, line: Line) -> None:
        """It was left just now."""
        self.stop()
        self._task = asyncio.create_task(self._keep(line))

    def stop(self) -> None:
        """It is wanted again, or ended by others."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def aclose(self) -> None:
        """Look after it no more; the lines are their owner's to end."""
        await ended(self._task)

    async def forget(self) -> None:
        """End it now, to make room: three targets at a time are too many."""
        self.stop()
        previous = self._lines.previous
        if previous is not None:
            await self.emptied(previous)
            await self._drop(previous)

    async def emptied(self, line: Line) -> None:
        """The requests in a line have as long to end as at a shutdown."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config().server.drain_seconds):
                await line.supervisor.flights.empty()

    async def _keep(self, line: Line) -> None:
        await line.supervisor.flights.empty()
        self._lines.share()
        if line.runs:
            await asyncio.sleep(self._config().model.target.update.keep_seconds)
        await self._drop(line)

    async def _drop(self, line: Line) -> None:
        self._lines.previous = None
        self._lines.share()
        await line.end(ENDED)
