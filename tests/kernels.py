"""The native kernels, compiled once for all who run tests at the same time: it takes seconds."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from engine.kernels.native import build


def compiled(factory: pytest.TempPathFactory) -> Path:
    """A cache directory with them in it, where there is a compiler."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if shutil.which("g++"):
            build(folder)
    return folder
