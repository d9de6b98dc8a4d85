"""What the daemon does not need any more goes back to the system."""

import subprocess
import sys
import weakref

import pytest

from specd.config.schema import Config
from specd.config.target import TargetSection
from specd.flights import Refusal
from specd.target.files import DraftChoice
from specd.target.line import Line

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


class Model:
    """Stands for a tokenizer and what belongs to it."""


async def test_a_line_that_ends_lets_go_of_its_model(monkeypatch) -> None:
    """Test that it holds it no more though somebody still holds the line, and has what it took given back: lines end
    for updates that are refused, too.
    """
    given_back = []

    async def give_back() -> None:
        given_back.append(model() is None)

    monkeypatch.setattr("specd.target.line.give_back", give_back)
    line = Line(TargetSection(path="tiny"), DraftChoice(), ["false"], Config)
    line._model.set_result(Model())
    model = weakref.ref(line._model.result())
    await line.end(Refusal("it is over", "over"))
    assert line.known is None
    assert given_back == [True]
