"""How long the daemon lives: until it is told to end, or until a part of it fails."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger(__name__)


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

    def heed_signals(self, hang_up: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """From now on. hang_up: what SIGHUP asks for."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.asked_to_end)
        loop.add_signal_handler(signal.SIGHUP, lambda: self.spawn(hang_up()))

    async def drained(self, requests: int, empty: Coroutine[Any, Any, None], seconds: float) -> None:
        """Wait for what is still open, for so long at most, and no longer once somebody is in a hurry. requests: how
        many there are; empty: ends when there are none.
        """
        if requests:
            log.info(
                "draining: %d open requests have %g s to end; a second signal ends them now",
                requests,
                seconds,
            )
        waits = [asyncio.ensure_future(empty), asyncio.ensure_future(self.hurry.wait())]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

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
