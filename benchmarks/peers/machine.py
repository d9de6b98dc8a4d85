"""Whether a measurement had the machine to itself."""

import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_TOLERATED: Final = 0.05  # of the machine, taken away by the hypervisor


class Quiet:
    """Watches the time that the hypervisor took away (steal) while it is entered. Linux; elsewhere all is quiet."""

    def __enter__(self) -> Self:
        self._stolen, self._begin = _stolen(), time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = (time.monotonic() - self._begin) * _processors()
        self.was_kept = _stolen() - self._stolen <= _TOLERATED * seconds


def _stolen() -> float:
    """Seconds over all processors since the start."""
    try:
        return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8]) / 100
    except (OSError, IndexError):
        return 0.0


def _processors() -> int:
    try:
        return sum(line.startswith("cpu") for line in Path("/proc/stat").read_text().splitlines()) - 1
    except OSError:
        return 1
