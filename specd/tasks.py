"""Work of the daemon's own loop that goes on until it is ended."""

import asyncio


async def ended(task: asyncio.Task[None] | None) -> None:
    """Cancel it, if it was begun, and wait until it has noticed."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
