"""How much of the machine an engine takes, while there is another one beside it.

Two engines with a thread for each core stop each other: a step ends with the slowest of its threads, in every part of
every layer, and the others spin until that one is given a core again. So no more threads compute than there are cores,
but for the one thread of an engine that loads behind the one that serves.

On Linux niceness belongs to threads, and new ones begin with that of their maker. Lowering it again takes a privilege
or a limit that allows it (`LimitNICE=+0` in a systemd unit): where it could not be taken back, it is not taken.
"""

import os
import threading
from pathlib import Path
from typing import Final

import torch

from engine.api import Share

NICE: Final = 10
"""How much nicer an engine is behind another."""
_MINE: Final = 0  # the calling thread, to setpriority


class Machine:
    """What this process takes of it: begins with all that it has been given."""

    def __init__(self, threads: int) -> None:
        """threads: that compute where nobody else does; 0 for as many as there are cores."""
        if threads:
            torch.set_num_threads(threads)
        self._threads = torch.get_num_threads()
        self._usual: int | None = None  # niceness, where it is another one now

    def take(self, share: Share) -> None:
        """From the next step on. To be called by the thread that computes: its number of threads is its own."""
        if share == "behind":
            self._step_back()
        else:
            self._step_forward()
        torch.set_num_threads(
            {"alone": self._threads, "beside": max(1, self._threads // 2), "behind": 1}[share]
        )

    def _step_back(self) -> None:
        if self._usual is None and may_step_back():
            self._usual = os.getpriority(os.PRIO_PROCESS, _MINE)
            _everywhere(self._usual + NICE)

    def _step_forward(self) -> None:
        if self._usual is not None:
            _everywhere(self._usual)
            self._usual = None


def may_step_back() -> bool:
    """Whether this process could take low priority back. Tried with a thread that ends afterwards."""
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
