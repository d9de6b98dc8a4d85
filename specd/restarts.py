"""How an engine can end, and when it is started again. Pure decisions."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

DeathReason = Literal["crash", "exit", "hang", "protocol", "start_timeout", "refused"]
DEATH_REASONS: Final[tuple[DeathReason, ...]] = get_args(DeathReason)


@dataclass(frozen=True, slots=True)
class Death:
    """How one engine process ended."""

    reason: DeathReason
    text: str
    """One clause for people: "signal 9"."""
    ready_seconds: float | None
    """How long it had been ready; None when it never was."""
    last_lines: tuple[str, ...] = ()
    """Of what it wrote, a traceback at best."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How deaths in a row are met."""

    first_delay: float = 0.5
    longest_delay: float = 30.0
    healthy_seconds: float = 60.0
    """An engine that was ready for this long has put the failures before it behind."""
    failures_to_refuse: int = 5
    """From this many failures in a row on, requests are refused instead of kept waiting."""
    failures_at_start: int = 3
    """An engine that never became ready ends the daemon after this many tries."""

    def delay(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        doublings = min(failures - 1, 32)  # a float holds no more than a thousand
        return min(self.first_delay * 2.0**doublings, self.longest_delay)

    def count(self, failures: int, death: Death) -> int:
        """Failures in a row, this death included."""
        healthy = death.ready_seconds is not None and death.ready_seconds >= self.healthy_seconds
        return 1 if healthy else failures + 1
