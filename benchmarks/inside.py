"""What a daemon's memory is made of, or where its time goes, told from inside it whenever somebody outside asks.

A thread waits at a pipe with a name. Each line that is written there names a look, and the answer is a JSON file of
that name beside the pipe:

python     blocks and objects that Python holds, and of which types most objects are
allocator  bytes that the C library has handed out, and those that were freed and that it keeps for later
traced     where Python's memory was asked for, if that was to be traced from the start, which costs time and memory
sampled    at which functions its main thread was seen since the last look, if it was to be sampled
"""

import asyncio
import ctypes
import gc
import json
import os
import signal
import sys
import threading
import tracemalloc
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal

_PIPE: Final = "looks"
_MOST: Final = 25
_PATIENCE: Final = 60.0
_SAMPLED_EVERY: Final = 0.002

_itself: Counter[str] = Counter()
_within: Counter[str] = Counter()


_MALLINFO: Final = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`, summed over all arenas."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLINFO)


def listen(folder: Path, how: Literal["plain", "traced", "sampled"]) -> None:
    """Answer looks from now on, in the process that is to be looked at, and of which this is the main thread."""
    if how == "traced":
        tracemalloc.start()
    if how == "sampled":
        signal.signal(signal.SIGPROF, _sample)
        signal.setitimer(signal.ITIMER_PROF, _SAMPLED_EVERY, _SAMPLED_EVERY)
    os.mkfifo(folder / _PIPE)
    threading.Thread(target=_answer, args=(folder,), name="looks", daemon=True).start()


async def look(folder: Path, name: str) -> dict[str, Any]:
    """How it is inside the daemon that listens there, now. Empty where it does not answer."""
    answer = folder / f"{name}.json"
    _ask(folder, name)
    try:
        async with asyncio.timeout(_PATIENCE):
            while not answer.exists():  # noqa: ASYNC110  another process makes it
                await asyncio.sleep(0.05)
    except TimeoutError:
        return {}
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


def _ask(folder: Path, name: str) -> None:
    pipe = os.open(folder / _PIPE, os.O_RDWR)  # which waits for no reader
    os.write(pipe, f"{name}\n".encode())
    os.close(pipe)


def _answer(folder: Path) -> None:
    before: tracemalloc.Snapshot | None = None
    while True:
        with (folder / _PIPE).open() as pipe:
            for line in pipe:
                found, before = _looked(before)
                part = folder / f"{line.strip()}.part"
                part.write_text(json.dumps(found))
                part.rename(part.with_suffix(".json"))


def _looked(before: tracemalloc.Snapshot | None) -> tuple[dict[str, Any], tracemalloc.Snapshot | None]:
    """What there is now, what cycles held counted as gone; and what the next look is to be compared with."""
    gc.collect()
    objects = gc.get_objects()
    kinds = Counter(type(one).__qualname__ for one in objects).most_common(_MOST)
    found = {
        "python": {"blocks": sys.getallocatedblocks(), "objects": len(objects), "kinds": dict(kinds)},
        "allocator": _allocator(),
    }
    del objects
    if signal.getitimer(signal.ITIMER_PROF)[1]:
        found["sampled"] = _sampled()
    if not tracemalloc.is_tracing():
        return found, None
    now = tracemalloc.take_snapshot()
    statistics = now.statistics("lineno") if before is None else now.compare_to(before, "lineno")
    return found | {"traced": [str(one) for one in statistics[:_MOST]]}, now


def _sample(_: int, frame: FrameType | None) -> None:
    """What the main thread is at: the function itself, and each that it was called by, directly or not, once."""
    places = []
    while frame is not None:
        places.append(f"{frame.f_globals.get('__name__')}:{frame.f_code.co_qualname}")
        frame = frame.f_back
    _itself[places[0]] += 1
    _within.update(set(places))


def _sampled() -> dict[str, Any]:
    found = {"itself": dict(_itself), "within": dict(_within), "every_seconds": _SAMPLED_EVERY}
    _itself.clear()
    _within.clear()
    return found


def _allocator() -> dict[str, int]:
    """Empty where the C library does not tell."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return {}
    mallinfo.restype = _MallInfo
    info = mallinfo()
    return {"in_use": info.uordblks + info.hblkhd, "kept": info.fordblks}
