"""What the service manager hears while the daemon runs."""

import asyncio
from collections.abc import Callable
from typing import Final

from specd.notify import Notifier
from specd.supervisor import EngineState
from specd.target.lines import Lines

EXTENSION: Final = 30.0
"""Seconds that are asked for at a time while a model loads, the first one or that of a reload."""
_LONGEST: Final = 5.0


async def heartbeat(notifier: Notifier, lines: Lines, status: Callable[[], str]) -> None:
    """Tell how things are; feed the watchdog only while the engine lives.

    A start of the engine is life as well: it is bounded by engine.start_seconds, or others decide on it. An engine that
    fails again and again is not.
    """
    interval = min(_LONGEST, (notifier.watchdog_seconds or _LONGEST * 3) / 3)
    seen = -1
    while True:
        supervisor = lines.current.supervisor
        starts = supervisor.state in {EngineState.STARTING, EngineState.DOWN} or lines.held
        if supervisor.signs_of_life != seen or starts:
            notifier.watchdog()
        if notifier.awaited:
            notifier.extend(EXTENSION)
        notifier.status(status())
        seen = supervisor.signs_of_life
        await asyncio.sleep(interval)
