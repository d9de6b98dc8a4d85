"""The store behind a thread of its own, which goes on in memory where the disk does not let it.

All that blocks is done in one thread, in the order in which it was asked for. A disk that is full, read-only or
broken, or a file that another specd has, is said loudly and tried again: meanwhile nothing of the alarm is lost unless
the daemon ends.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from specd.alerts.bounds import Bounds
from specd.alerts.store import BOUNDS, MEMORY, Saved, Store

log: Final = logging.getLogger(__name__)

T = TypeVar("T")

_FILE: Final = "alerts.db"
_BROKEN: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class DurableStore:
    """A `Store` that always works."""

    def __init__(
        self, directory: Path | None, clock: Callable[[], float] = time.time, bounds: Bounds = BOUNDS
    ) -> None:
        """Opens the database of this directory, and makes what is missing. None keeps all in memory."""
        self._clock = clock
        self._bounds = bounds
        self._path = None if directory is None else directory / _FILE
        self._thread = ThreadPoolExecutor(1, "alerts")
        self._was_read = False
        self.fault: str | None = None
        """Why it goes on in memory, if it does though it should not."""
        self._store, self.saved = self._open()

    @property
    def durable(self) -> bool:
        """Whether what it holds outlives the daemon."""
        return self._store.path != MEMORY

    def submit(self, work: Callable[[Store], T]) -> asyncio.Future[T]:
        """Do this with the store, after all that was asked for before. It is done even where nobody waits for it."""
        return asyncio.shield(asyncio.wrap_future(self._thread.submit(self._do, work)))

    async def run(self, work: Callable[[Store], T]) -> T:
        """The same, awaited."""
        return await self.submit(work)

    async def recover(self) -> None:
        """Where it goes on in memory though it should not: try the disk again."""
        if self.fault is not None:
            await asyncio.wrap_future(self._thread.submit(self._recover))

    def close(self) -> None:
        """Finish what was asked for, and let go of the file."""
        self._thread.shutdown()
        self._store.close()

    def _open(self) -> tuple[Store, Saved]:
        if self._path is None:
            return self._in_memory()
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return self._read(self._path)
        except (sqlite3.Error, OSError) as error:
            self._complain(error)
            return self._in_memory()

    def _read(self, path: Path) -> tuple[Store, Saved]:
        try:
            store, saved = self._load(path)
        except (sqlite3.DatabaseError, msgspec.MsgspecError) as error:
            if isinstance(error, sqlite3.DatabaseError) and _code(error) not in _BROKEN:
                raise
            aside = path.with_name(f"{path.name}.broken-{self._clock():.0f}")
            path.rename(aside)
            log.error(  # noqa: TRY400  the sentence says it all
                "%s is broken (%s): it is kept as %s, and alerts begin anew", path, error, aside.name
            )
            store, saved = self._load(path)
        self._was_read = True
        return store, saved

    def _load(self, path: Path) -> tuple[Store, Saved]:
        store = Store(path, self._bounds)
        try:
            return store, store.load(self._clock())
        except BaseException:
            store.close()
            raise

    def _in_memory(self) -> tuple[Store, Saved]:
        return Store(MEMORY, self._bounds), Saved([], {}, [], [])

    def _do(self, work: Callable[[Store], T]) -> T:
        try:
            return work(self._store)
        except sqlite3.Error as error:
            if self._store.path == MEMORY:
                raise
            self._go_on_in_memory(error)
            return work(self._store)

    def _go_on_in_memory(self, error: sqlite3.Error) -> None:
        self._complain(error)
        memory = Store(MEMORY, self._bounds)
        try:
            self._store.copy_to(memory)
        except sqlite3.Error as worse:
            log.error("what waited in %s cannot be read (%s)", self._path, worse)  # noqa: TRY400  the sentence says it all
            self._was_read = False
            memory = Store(MEMORY, self._bounds)
        self._store.close()
        self._store = memory

    def _recover(self) -> None:
        assert self._path is not None, "without a path nothing can be at fault"
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = Store(self._path, self._bounds)
        except (sqlite3.Error, OSError) as error:
            self.fault = _words(error)
            return
        try:
            if not self._was_read:
                self._store.adopt(file)
                self._was_read = True
            self._store.copy_to(file)
        except sqlite3.Error as error:
            file.close()
            self.fault = _words(error)
            return
        self._store.close()
        self._store, self.fault = file, None
        log.warning("alerts and what waits to be delivered are kept in %s again", self._path)

    def _complain(self, error: Exception) -> None:
        self.fault = _words(error)
        log.error(
            "alerts and what waits to be delivered cannot be kept in %s (%s): they are in memory only, and lost when"
            " the daemon ends before that is mended",
            self._path,
            self.fault,
        )


def _code(error: Exception) -> int:
    """SQLite's, without what it adds in the higher bits; 0 where there is none."""
    found: int = getattr(error, "sqlite_errorcode", 0)
    return found & 0xFF


def _words(error: Exception) -> str:
    if _code(error) == sqlite3.SQLITE_BUSY:
        return "another process has it open: give each specd a store.directory of its own"
    return (isinstance(error, OSError) and error.strerror) or str(error)
