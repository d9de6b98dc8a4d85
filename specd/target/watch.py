"""The directory that the config names, looked at again and again: another model in it is a target to update to."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from specd.config.target import TargetSection
from specd.errors import UpdateBusyError, UserError
from specd.threads import in_thread

log = logging.getLogger(__name__)

_UNWATCHED_SECONDS: Final = 1.0

Signature = tuple[Any, ...]


def signature(path: str) -> Signature | None:
    """What differs when the directory's files, or the link that leads to it, were replaced. None for no directory."""
    directory = Path(path).expanduser()
    try:
        files = sorted(directory.iterdir())
        stats = [(file.name, file.stat()) for file in files]
        return (str(directory.resolve()), *((name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in stats))
    except OSError:
        return None


class Settling:
    """Says when another model lies there: it differs from the one that was taken last, and has been left alone from one
    look to the next. One that was refused is not tried again as it is.
    """

    def __init__(self, served: Signature | None) -> None:
        self._taken = self._taken_before = served
        self._seen = served

    def has_settled(self, now: Signature | None) -> bool:
        """One more look; True once for each other model."""
        quiet, self._seen = now == self._seen, now
        if now is None or not quiet or now == self._taken:
            return False
        self._taken_before, self._taken = self._taken, now
        return True

    def put_back(self) -> None:
        """Nobody had time for it: it has settled again at the next look."""
        self._taken = self._taken_before


async def watch(
    target: Callable[[], TargetSection], update: Callable[[TargetSection], Awaitable[object]]
) -> None:
    """Update to whatever settles there, for as long as it runs. target: what the config in force names."""
    watched, settling = target().path, await _settling(target())
    while True:
        await asyncio.sleep(target().update.watch_seconds or _UNWATCHED_SECONDS)
        section = target()
        if settling is None or section.path != watched or not section.update.watch_seconds:
            watched, settling = section.path, await _settling(section)
        elif settling.has_settled(await in_thread(signature, watched)):
            try:
                await update(section)
            except UpdateBusyError:
                settling.put_back()
            except UserError as error:
                log.error("what lies in %s now is not served: %s", watched, error)  # noqa: TRY400  a sentence


async def _settling(section: TargetSection) -> Settling | None:
    """From what lies there now; None where it is not watched."""
    return Settling(await in_thread(signature, section.path)) if section.update.watch_seconds else None
