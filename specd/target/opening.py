"""From a target that is named to an engine that runs it and was checked: beside what serves, or in its place."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from specd.config.schema import Config
from specd.config.target import TargetSection
from specd.errors import MemoryShortageError, RuledOutError
from specd.target.canary import Canary, Judged
from specd.target.files import DraftChoice
from specd.target.keeping import ENDED, Keeping
from specd.target.line import Line
from specd.target.lines import Lines
from specd.target.reaction import Rule

log = logging.getLogger(__name__)

Make = Callable[[TargetSection, DraftChoice], Line]
"""A line that is not opened yet."""


class Opening:
    """Of one line at a time. Whatever goes wrong, the line that served goes on."""

    def __init__(
        self, lines: Lines, keeping: Keeping, canary: Canary, make: Make, config: Callable[[], Config]
    ) -> None:
        self._lines = lines
        self._keeping = keeping
        self._canary = canary
        self._make = make
        self._config = config

    @asynccontextmanager
    async def read(self, target: TargetSection, draft: DraftChoice, like: Line) -> AsyncIterator[Line]:
        """A line whose files have been read; any fault ends it. like: whose drafts go on, see `Line.find`."""
        line = self._make(target, draft)
        try:
            await line.find(like)
            await line.read(self._lines.current)
            yield line
        except BaseException:
            await line.end(ENDED)
            raise

    async def start(self, line: Line, ruled_out: Rule | None) -> tuple[Judged, ...]:
        """Have an engine run it that was checked; what the canary says, which None does not ask. Where there is no
        memory for two engines, the door stays shut until the switch, or the old one is back.
        """
        await self._keeping.forget()
        try:
            line.start("behind")
            await line.ready()
        except MemoryShortageError as shortage:
            if self._config().model.target.update.room == "beside":
                raise
            log.info("no memory for two engines (%s): requests are held until the new one serves", shortage)
            return await self._in_its_place(line, ruled_out)
        return await self._judged(line, ruled_out)

    async def _in_its_place(self, line: Line, ruled_out: Rule | None) -> tuple[Judged, ...]:
        old = self._lines.current
        if self._canary.enabled and ruled_out is not None:
            await self._canary.ask(old)
        self._lines.hold()
        try:
            await self._keeping.emptied(old)
            await old.stop(ENDED)
            line.start("alone")
            await line.ready()
            return await self._judged(line, ruled_out)
        except BaseException:
            await line.end(ENDED)
            self._lines.resume()
            raise

    async def _judged(self, line: Line, ruled_out: Rule | None) -> tuple[Judged, ...]:
        """What the canary says of a line before it takes traffic. Raises `RuledOutError` where that does."""
        if ruled_out is None or not self._canary.enabled:
            return ()
        judged = await self._canary.judge(self._lines.current, line)
        if why_not := ruled_out(judged):
            raise RuledOutError(why_not)
        return judged
