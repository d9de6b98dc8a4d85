"""How long a step may be planned to take, so that few take longer than the operator allows.

allowed   seconds between two tokens of a text, of which 99 in 100 are to be no longer
planned   seconds that a step is predicted to take when its drafts are chosen; real ones scatter around them
bound     the most that may be planned

How far real steps exceed planned ones differs by host and by traffic (a prompt beside the decodes, a slow page), so it
is not assumed: the bound follows what is seen. A step with drafts that took longer than allowed lowers it by `_PACE`,
any other raises it by a hundredth of that, so that it comes to rest where one step in a hundred is too long. A step
without drafts that is too long is not the fault of drafts, and shorter ones would not have helped.
"""

from math import exp
from typing import Final

from policies.base import StepSeen

_MISSES: Final = 0.01  # share of steps that may take longer
_PACE: Final = 0.1
_FIRST: Final = 0.8  # of what is allowed, before anything was seen
_LEAST: Final = 0.2


class LatencyBound:
    """The bound, learned from steps."""

    def __init__(self, allowed: float | None) -> None:
        """allowed: seconds; None for no bound."""
        self._share = _FIRST
        self._allowed = allowed

    @property
    def seconds(self) -> float | None:
        """What may be planned; None where nothing was asked for."""
        return None if self._allowed is None else self._allowed * self._share

    def configure(self, allowed: float | None) -> None:
        """Take another limit. How far steps exceed their plans is kept: it is the host's, not the limit's."""
        self._allowed = allowed

    def observe(self, step: StepSeen) -> None:
        """Learn from a step just done."""
        if self._allowed is None or not step.sequences:
            return
        missed = step.seconds > self._allowed and bool(step.drafting)
        moved = self._share * exp(_PACE * (_MISSES - missed))
        self._share = min(max(moved, _LEAST), 1.0)
