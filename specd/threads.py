"""Blocking work that nobody can interrupt."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` in a thread that the end of the process does not wait for.

    That is what `asyncio.to_thread` would do: a download of an hour would outlive SIGTERM by as much.
    """
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            outcome.set_result(work(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  it is raised where the result is awaited
            outcome.set_exception(error)

    Thread(target=run, name=getattr(work, "__name__", "work"), daemon=True).start()
    return await asyncio.wrap_future(outcome)
