"""What may be taken at a rate. Pure: time is an argument."""

from dataclasses import dataclass
from typing import Final

_MINUTE: Final = 60.0


@dataclass(slots=True)
class Bucket:
    """Full at first, with what a minute brings. Below zero is a debt, which is made up for at the same rate."""

    level: float | None = None
    """At `at`; None while nothing has been taken."""
    at: float = 0.0

    def seconds_until(self, need: float, per_minute: float, now: float) -> float:
        """Until there is so much in it, with as much as it can hold if `need` is more; 0 where it is now."""
        missing = min(need, _capacity(per_minute)) - self._level(per_minute, now)
        return max(missing, 0.0) * _MINUTE / per_minute

    def take(self, amount: float, per_minute: float, now: float) -> None:
        """Whether it is there or not."""
        self.level, self.at = self._level(per_minute, now) - amount, now

    def is_full(self, per_minute: float, now: float) -> bool:
        """Whether it is as if nothing had ever been taken."""
        return self._level(per_minute, now) >= _capacity(per_minute)

    def _level(self, per_minute: float, now: float) -> float:
        if self.level is None:
            return _capacity(per_minute)
        came = max(now - self.at, 0.0) * per_minute / _MINUTE
        return min(self.level + came, _capacity(per_minute))


def _capacity(per_minute: float) -> float:
    """One at least, or nothing could ever be had at less than one a minute."""
    return max(per_minute, 1.0)
