"""What the daemon does not need any more goes back to the system."""

import subprocess
import sys

import pytest

GOES = """
import asyncio, gc, re, threading
from pathlib import Path
from specd import memory

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

class Large:
    def __init__(self):
        self.parts = [bytearray(1000) for _ in range(60_000)]
        self.itself = self

kept = []

def load():
    kept.append(Large())
    kept.append(bytearray(1000))  # lies behind it, so that the heap's end cannot come down

async def main():
    memory.settle()
    gc.disable()
    for _ in range(3):
        before = resident()
        loading = threading.Thread(target=load)
        loading.start()
        loading.join()
        full = resident()
        del kept[-2]
        await memory.give_back()
        print(full - before, resident() - before)

memory.begin()
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the C library's allocator of Linux is meant")
def test_what_goes_is_given_back() -> None:
    """Test that of 60 MiB in a cycle, asked for by a thread and freed, nearly all goes back, each time."""
    told = subprocess.run(
        [sys.executable, "-c", GOES], capture_output=True, text=True, check=True, timeout=120
    )
    for line in told.stdout.splitlines():
        took, left = map(float, line.split())
        assert took > 50
        assert left < 10
