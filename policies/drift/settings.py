"""What an operator may set of the drift detectors, as plain values."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class DriftSettings:
    """All of it can change while running."""

    learn_requests: int = 100
    """Requests of a stratum before anything is said of it."""
    min_drop: float = 0.05
    """A smaller fall of acceptance raises no alarm, however sure it is."""
    requests_per_false_alarm: float = 1e7
    """At most one alarm in so many requests of a stratum in which nothing has changed, on average."""
    loop_above: float = 0.95
    """Acceptance that has risen to this is suspicious: texts that repeat themselves are easy to guess."""
    collapse_below: float = 0.15
    """Acceptance that has fallen below this is a collapse."""
    stale_seconds: float = 600.0
    """A stratum in which nothing was examined for so long has nothing to say."""
    after_update: Literal["carry", "learn"] = "carry"
    """Whether another pair of revisions is compared with what the one before it showed, or with itself alone."""
