"""Work in threads that the process does not wait for."""

import asyncio
import subprocess
import sys

import pytest

from specd.threads import in_thread

NEVER_ENDS = """
import asyncio, threading
from specd.threads import in_thread

async def main():
    started = threading.Event()
    def work():
        started.set()
        threading.Event().wait()
    task = asyncio.ensure_future(in_thread(work))
    await asyncio.to_thread(started.wait)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()

asyncio.run(main())
"""


async def test_results_and_errors_arrive():
    """Test that the caller gets what the work returns or raises, and that the loop turns meanwhile."""
    assert await in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 7, 0)


def test_the_process_ends_while_the_work_goes_on():
    """Test that neither the loop's end nor the interpreter's waits for work that never ends."""
    done = subprocess.run(
        [sys.executable, "-c", NEVER_ENDS], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")


async def test_a_result_that_nobody_awaits_any_more_is_dropped():
    """Test that work which ends after its caller was cancelled disturbs nobody."""
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()

    task = asyncio.ensure_future(in_thread(work))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    release.set()
    assert await in_thread(int, "7") == 7
