"""What an operator may set. Plain values, so that they travel on the wire and compare by `==`."""

from dataclasses import dataclass
from typing import Literal

PolicyKind = Literal["ewma", "static", "off"]


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The load policy: a cap on k by the number of running requests, off above a threshold."""

    table: tuple[tuple[int, int], ...] = ((2, 8), (4, 6), (8, 3), (12, 1))
    """(up to this many running requests, cap on a draft's levels), running ascending; the last cap holds above it."""
    off_above: int = 12
    """Drafting is off while more requests than this are running."""
    resume_at: int = 8
    """Once off, drafting comes back when no more than this many are running (hysteresis)."""
    dwell_steps: int = 16
    """A looser cap is granted only after the load has allowed it for this many steps in a row."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The per-request controller and the load policy on top of it."""

    kind: PolicyKind = "ewma"
    k_max: int = 8
    """No draft has more levels than this; a chain has as many tokens."""
    static_k: int = 4
    """The k of kind = "static"."""
    half_life: float = 16.0
    """Examined tokens after which old evidence weighs half."""
    prior: float = 0.6
    """Acceptance assumed for a class that has shown nothing yet, 0 to 1."""
    draft_cost: float | None = None
    """Cost of one more level drafted, in plain decode steps; None takes what was measured of each proposer."""
    row_cost: float | None = None
    """Cost of verifying one more row, in plain decode steps; None takes what was measured."""
    tree_nodes: int = 16
    """Tokens of a tree at most; 0 for chains only. Under load there are none."""
    probe_every: int = 32
    """A request at k = 0 is probed once in this many of its rounds; while the load switched drafting off, one request
    is probed once in this many steps; of requests that draft, other options are tried four times as seldom."""
    probe_k: int = 1
    """The draft length of a probe."""
    load: LoadSettings = LoadSettings()
