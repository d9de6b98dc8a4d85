"""Where a step spends its time."""

import time
from dataclasses import dataclass


@dataclass(slots=True)
class Stopwatch:
    """Seconds since the last lap."""

    _last: float

    @classmethod
    def start(cls) -> "Stopwatch":
        """Begin the first lap."""
        return cls(time.perf_counter())

    def lap(self) -> float:
        """Seconds of the lap that ends here."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        return seconds
