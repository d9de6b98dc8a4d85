"""`python -m specd.target.idle PARENT PROGRAM …`: become that program, which takes what nobody else wants of the host.

It gives way to whatever else would compute, and ends with its parent: one that was killed cannot end it any more.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_NICEST: Final = 19


def idle(program: Sequence[str]) -> list[str]:
    """The program as a child of this process that gives way to whatever else would compute."""
    return [sys.executable, "-m", "specd.target.idle", str(os.getpid()), *program]


def main(arguments: Sequence[str]) -> None:
    """Does not return."""
    parent, *program = arguments
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it had ended before the kernel was asked to tell
        sys.exit(1)
    os.nice(_NICEST)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.execvp(program[0], program)  # noqa: S606  as we were told


if __name__ == "__main__":
    main(sys.argv[1:])
