"""Lines that are written to a file behind the event loop's back, a lot of them at a time."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from specd.tasks import ended
from specd.threads import in_thread

Line = TypeVar("Line", str, bytes)

Append = Callable[[Sequence[Line]], None]
"""Writes lines, blocking. Raises `OSError` where none of them may have been written."""


class Behind(Generic[Line]):
    """A queue, written now and then. What cannot be written is let go."""

    def __init__(self, *, interval: float, most: int) -> None:
        """interval: seconds. most: lines that wait."""
        self._interval = interval
        self._most = most
        self._waiting: list[Line] = []
        self._faulty = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Write what is queued, again and again, until `aclose`."""
        self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Write the rest."""
        await ended(self._task)
        await self.flush()

    async def flush(self) -> None:
        """Write all that is queued."""
        lines, self._waiting = self._waiting, []
        append = self._append()
        if not lines or append is None:
            return
        try:
            await in_thread(append, lines)
        except OSError as error:
            self._lost(lines, error, again=self._faulty)
            self._faulty = True
        else:
            self._written(lines, again=self._faulty)
            self._faulty = False

    def _put(self, line: Line) -> bool:
        """Queue it; False where too many wait."""
        room = len(self._waiting) < self._most
        if room:
            self._waiting.append(line)
        return room

    def _append(self) -> Append[Line] | None:
        """What writes; None where nothing is to be kept."""
        raise NotImplementedError

    def _lost(self, lines: Sequence[Line], error: OSError, *, again: bool) -> None:
        """These could not be written; again: as little as those before them."""
        raise NotImplementedError

    def _written(self, lines: Sequence[Line], *, again: bool) -> None:
        """These are written; again: those before them were lost."""

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self.flush()
