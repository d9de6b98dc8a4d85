"""Low priority for an engine that loads beside the one that serves, and back again.

On Linux niceness belongs to threads, and new ones begin with that of their maker. Lowering it again takes a privilege
or a limit that allows it (`LimitNICE=+0` in a systemd unit): where it could not be taken back, it is not taken.
"""

import os
import threading
from pathlib import Path
from typing import Final

_NICE: Final = 10
_MINE: Final = 0  # the calling thread, to setpriority


def step_back() -> int | None:
    """Make this process nicer than others. Returns what `step_forward` needs, None where it could not be undone and
    nothing was done.
    """
    if not _can_return():
        return None
    usual = os.getpriority(os.PRIO_PROCESS, _MINE)
    _everywhere(usual + _NICE)
    return usual


def step_forward(usual: int | None) -> None:
    """As nice as it was before `step_back`."""
    if usual is not None:
        _everywhere(usual)


def _can_return() -> bool:
    """Tried with a thread that ends afterwards."""
    found = [False]

    def attempt() -> None:
        before = os.getpriority(os.PRIO_PROCESS, _MINE)
        try:
            os.setpriority(os.PRIO_PROCESS, _MINE, before + 1)
            os.setpriority(os.PRIO_PROCESS, _MINE, before)
        except OSError:
            return
        found[0] = True

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return found[0]


def _everywhere(niceness: int) -> None:
    for thread in Path("/proc/self/task").iterdir():
        try:
            os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)
        except ProcessLookupError:
            continue  # it ended meanwhile
