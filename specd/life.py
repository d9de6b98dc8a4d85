"""How long the daemon lives: until it is told to end, or until a part of it fails."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Life:
    """Parts spawn what they do in the background; whoever owns them waits for the end."""

    def __init__(self) -> None:
        self.hurry = asyncio.Event()
        """Set once nobody wants to wait any more for what is still open."""
        self._end = asyncio.Event()
        self._fault: BaseException | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def ending(self) -> bool:
        """Whether it was told to end, or a part has failed."""
        return self._end.is_set()

    @property
    def failed(self) -> bool:
        """Whether a part has."""
        return self._fault is not None

    def asked_to_end(self) -> None:
        """By a signal. Who asks twice is in a hurry."""
        (self.hurry if self.ending else self._end).set()

    async def over(self) -> None:
        """Wait for the end."""
        await self._end.wait()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something for as long as the daemon lives; its failure ends the daemon."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def aclose(self) -> None:
        """End what was spawned."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def raise_fault(self) -> None:
        """What made the daemon end, if something did."""
        if self._fault is not None:
            raise self._fault

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fault = self._fault or error
            self._end.set()
