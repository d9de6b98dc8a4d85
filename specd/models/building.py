"""How a model directory is made in the cache: under a lock, beside its place, and renamed when it is whole.

NAME.partial/     being built; whatever is in it is thrown away by the next try
NAME/             renamed from NAME.partial when complete, manifest included
NAME.lock         held by who builds
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from specd.errors import FetchError
from specd.models import directory, manifest

Say = Callable[[str], None]


@contextlib.contextmanager
def locked(place: Path, say: Say) -> Iterator[None]:
    """Hold the lock of a place; wait for whoever has it. The kernel drops it with the process: none is ever stale."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is making {place.name}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def empty_partial(place: Path) -> Path:
    """Where to build what will be at `place`."""
    partial = place.with_name(f"{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def finish(partial: Path, place: Path, source: str, source_sha256: str = "") -> None:
    """Check what was built, record where it comes from, and put it in its place in one step. Raises `FetchError`."""
    for file in partial.iterdir():
        file.chmod(0o644)  # safetensors writes 0600, but the daemon may run as another user than who fetched
    faults = directory.faults(partial)
    if faults:
        raise FetchError("the conversion left an unusable model:\n" + "\n".join(faults))
    manifest.write(partial, source, source_sha256)
    shutil.rmtree(place, ignore_errors=True)
    partial.rename(place)


def run(command: list[str], failure: str) -> None:
    """Run with all output on stderr, since stdout is for answers; bars only where someone watches.

    Raises `FetchError`.
    """
    done = subprocess.run(command, check=False, stdout=sys.stderr, env=quiet_environment())  # noqa: S603  our arguments
    if done.returncode != 0:
        raise FetchError(failure)


def quiet_environment() -> dict[str, str]:
    """The environment for a program of ours: without progress bars where nobody watches."""
    return os.environ | ({} if sys.stderr.isatty() else {"TQDM_DISABLE": "1"})
