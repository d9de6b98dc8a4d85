"""What somebody says of one thing that is watched, right now. `lifecycle` decides whether that is an alert.

Whoever has something to say makes findings: the floor rules, drift detectors, canaries, the supervisor. The same thing
has the same labels each time; no two who speak of different things may share theirs.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

NAMES: Final = (
    "SpecdAcceptanceDrift",
    "SpecdAcceptanceCollapse",
    "SpecdAcceptanceLoop",
    "SpecdSpeculationLosing",
    "SpecdDraftMismatch",
    "SpecdTargetUpdateRefused",
    "SpecdEngineRestarted",
    "SpecdMemoryPressure",
    "SpecdConfigReloadFailed",
    "SpecdTargetChanged",
    "SpecdObservedDown",
)
"""Every alert that there can be, for series that exist before their first one."""

OBSERVED: Final = "observed"
"""The label that names the engine of others that an alert is about."""


class Verdict(Enum):
    """What is said of it."""

    BREACHED = auto()
    FINE = auto()
    BETWEEN = auto()
    """No longer breached, not yet fine: begins no alert and ends none that fires."""
    NO_EVIDENCE = auto()
    """Nothing can be said: changes nothing, and such time does not count."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The models that are served together."""

    target_revision: str
    draft_revision: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict with the numbers behind it."""

    source: str
    """Who says it: "floor", "drift", "canary", …"""
    labels: dict[str, str]
    """Who the alert is: `alertname` (of `NAMES`), `severity`, and what tells it from others of its name. One about a
    pair of models has `target_revision` and `draft_revision`, and ends when another pair is served; whoever observes
    another engine (`OBSERVED`) ends those about it."""
    verdict: Verdict
    annotations: dict[str, str] = field(default_factory=dict)
    """For people: `summary`, one line; `description`, with the evidence in numbers. Those of a FINE one may say in
    `resolution` what came back."""
    for_seconds: float = 0.0
    """How long it must be breached before the alert fires. What is said only once needs 0."""
    keep_seconds: float = 0.0
    """How long it must be fine before a firing alert is over. What is said only once needs 0."""
    since: float | None = None
    """Unix seconds at which it began, where that was estimated; None takes the first breach."""


def pair_of(labels: dict[str, str]) -> Pair | None:
    """The pair of the daemon's own that these labels are about, None where they are about none."""
    if "target_revision" not in labels or OBSERVED in labels:
        return None
    return Pair(labels["target_revision"], labels.get("draft_revision", ""))
