"""The vocabulary of drift.

stratum    what is judged on its own: a class, a bucket of temperatures, a proposer, and how its acceptance is known
rate       of one request and position: the share of its examined tokens that were accepted. The request is the unit:
           its tokens resemble each other, so that a thousand of one request are not a thousand pieces of evidence
baseline   what a stratum's requests showed before
drop       how far acceptance fell below its baseline, as a difference of rates
"""

from dataclasses import dataclass
from enum import StrEnum
from math import isnan
from typing import Final, NamedTuple

POSITIONS: Final = 4
"""Draft positions that are watched; those from the fourth on are one."""


class Kind(StrEnum):
    """What is wrong. The values are those of the label `kind`."""

    STEP = "step"
    DECAY = "decay"
    COLLAPSE = "collapse"
    LOOP = "loop"
    LOSING = "losing"
    CANARY = "canary"


class Verdict(StrEnum):
    """What can be said of a stratum now."""

    BREACHED = "breached"
    FINE = "fine"
    NO_EVIDENCE = "no evidence"


class Stratum(NamedTuple):
    """What is compared with itself alone, so that another mix of traffic is no drift."""

    traffic_class: str
    temperature: str
    """A bucket, see `bucket`."""
    proposer: str
    by_chance: bool = False
    """Whether its rates are the chances that tokens had, and not what became of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What one finished request showed of one proposer's drafts."""

    t: float
    """Unix seconds at its end."""
    traffic_class: str
    temperature: float
    target_revision: str
    draft_revision: str
    proposer: str
    examined: tuple[int, ...]
    """By draft position: rounds that examined it."""
    accepted: tuple[int, ...]
    """By draft position: rounds that accepted it."""
    tokens: int
    """Of the whole text."""
    expected: tuple[float, ...] = ()
    """By draft position: the sum of the chances that its examined tokens had (the sum of min(p, q) of each), where the
    guesses were drawn from a law. Empty where nobody knows."""

    @property
    def stratum(self) -> Stratum:
        """Where it belongs."""
        return Stratum(self.traffic_class, bucket(self.temperature), self.proposer, bool(self.expected))


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What a detector says of a stratum."""

    kind: Kind
    stratum: Stratum
    verdict: Verdict
    target_revision: str
    draft_revision: str
    position: int = 1
    """The draft position that shows it; the first is 1."""
    before: float = float("nan")
    """The baseline."""
    after: float = float("nan")
    """Of a fall or a rise: where to. A fall is told as it was seen when the alarm was raised."""
    low: float = float("nan")
    """Of `after - before`: about 95 % of intervals made so hold it."""
    high: float = float("nan")
    since: float | None = None
    """Unix seconds of the request with which it seems to have begun."""
    now: float = float("nan")
    """The rate of the last requests."""
    now_error: float = float("nan")
    """Its standard error."""
    requests_before: int = 0
    requests_after: int = 0
    score: float = float("nan")
    """How near the evidence is to an alarm: 1 raises it."""


class Baseline(NamedTuple):
    """Acceptance of the first position before anything changed."""

    mean: float
    requests: int


def bucket(temperature: float) -> str:
    """Temperatures that are judged together: the hotter, the flatter the target's law and the fewer are accepted. NaN
    is for requests of all temperatures.
    """
    if isnan(temperature):
        return "mixed"
    if temperature <= 0:
        return "greedy"
    return "low" if temperature <= 0.5 else "medium" if temperature <= 1 else "high"
