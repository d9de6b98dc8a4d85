"""The daemon's own memory: what goes is to go, though libraries and the allocator would rather keep it.

A tokenizer takes 30 MiB and more, and comes and goes with its target. The C library keeps what was freed, in one of up
to eight arenas a core, whichever thread had asked for it: without all this, eight updates double what the daemon takes.
What hangs together in cycles, Python frees when it next looks at all objects, the more seldom the more there are.
"""

import ctypes
import gc
from typing import Final

from specd.threads import in_thread

_ARENA_MAX: Final = -8  # M_ARENA_MAX of glibc's malloc.h
_ARENAS: Final = 2


def begin() -> None:
    """To be called before there are threads: they share an arena, apart from that of the main thread."""
    mallopt = _of_c_library("mallopt")
    if mallopt is not None:
        mallopt(_ARENA_MAX, _ARENAS)


def settle() -> None:
    """What there is now stays: it is not looked at again for garbage, so to look at the rest takes milliseconds. What
    the start alone needed goes.
    """
    gc.collect()
    gc.freeze()
    _trim()


async def give_back() -> None:
    """Something large has gone: have it freed, and what is free returned to the system."""
    gc.collect()
    await in_thread(_trim)


def _trim() -> None:
    trim = _of_c_library("malloc_trim")
    if trim is not None:
        trim(0)


def _of_c_library(name: str) -> "ctypes._NamedFuncPointer | None":
    """None where there is no such function: other C libraries than glibc manage without."""
    return getattr(ctypes.CDLL(None), name, None)
