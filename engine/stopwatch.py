"""Where a step spends its time."""

import time
from dataclasses import dataclass


def now() -> float:
    """Seconds on a clock that never goes back."""
    return time.perf_counter()


@dataclass(slots=True)
class Stopwatch:
    """Seconds since the last lap, and since the start."""

    _first: float
    _last: float

    @classmethod
    def start(cls) -> "Stopwatch":
        """Begin the first lap."""
        begun = now()
        return cls(begun, begun)

    @property
    def total(self) -> float:
        """Seconds since the start."""
        return now() - self._first

    def lap(self) -> float:
        """Seconds of the lap that ends here."""
        at = now()
        seconds, self._last = at - self._last, at
        return seconds
