"""A long job in a process of its own, within bounds of time and disk."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from specd.errors import UserError
from specd.private import private
from specd.threads import in_thread

_LOOK: Final = 5.0
_PATIENCE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is more ends it."""

    seconds: float
    bytes: int
    """Of the files in its folder."""


async def run(
    program: Sequence[str], folder: Path, log: Path, bounds: Bounds, *, look: float = _LOOK
) -> None:
    """Run the program to its end. folder: where it writes. log: what it says, for its owner alone. Raises `UserError`
    with its last words where it fails or takes more than it may.
    """
    with _written(log) as said:
        process = await asyncio.create_subprocess_exec(
            *program,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        code = await _watched(process, folder, bounds, look)
    finally:
        await _end(process)
    if code:
        raise UserError(f"it ended with code {code}: {_last_words(log)}")


async def _watched(process: asyncio.subprocess.Process, folder: Path, bounds: Bounds, look: float) -> int:
    end = time.monotonic() + bounds.seconds
    while True:
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(process.wait(), look)
        if time.monotonic() > end:
            raise UserError(f"it took longer than {bounds.seconds / 60:g} minutes and was ended")
        if await in_thread(size_of, folder) > bounds.bytes:
            raise UserError(f"it wrote more than {bounds.bytes / 1e9:g} GB and was ended")


async def _end(process: asyncio.subprocess.Process) -> None:
    """It, and whoever it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _PATIENCE)


def size_of(folder: Path) -> int:
    """Bytes of all files in it; what goes while one looks counts for nothing."""
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            found += path.stat().st_size if path.is_file() else 0
    return found


def _written(log: Path) -> BinaryIO:
    return open(log, "wb", opener=private)


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"
