"""What an operator may set. Plain values, so that they travel on the wire and compare by `==`."""

from dataclasses import dataclass
from typing import Final, Literal

PolicyKind = Literal["goodput", "ewma", "static", "off"]

Objective = Literal["throughput", "latency"]

EVERY_OTHER: Final = "*"
"""Names each tenant that is not named, each on its own."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The load policy: a hard cap on k. What is unset is filled in by `policies.load.rules_of`."""

    table: tuple[tuple[int, int], ...] | None = None
    """(up to this many running requests, cap on a draft's levels), running ascending; the last cap holds above it."""
    off_above: int | None = None
    """Drafting is off while more requests than this are running."""
    resume_at: int | None = None
    """Once off, drafting comes back when no more than this many are running (hysteresis)."""
    context_table: tuple[tuple[int, int], ...] = ()
    """(up to this many attended tokens, cap on a draft's levels): of the texts that decode, all together."""
    kv_reserve: float = 0.1
    """While requests wait and a smaller share of the KV blocks is available, drafts become shorter."""
    dwell_steps: int = 16
    """A looser cap is granted only after the load has allowed it for this many steps in a row."""


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """What is allowed to all requests of one tenant."""

    name: str
    """As the requests say it; `EVERY_OTHER` for each that is not named."""
    k_max: int | None = None
    """No draft of theirs has more levels than this; 0 for none at all."""
    draft_tokens: int | None = None
    """Tokens drafted for all of them together in a step; they get chains, no trees."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The per-request controller and the load policy on top of it."""

    kind: PolicyKind = "goodput"
    objective: Objective = "throughput"
    """"latency": no draft makes a step longer than `latency_ms` allows."""
    latency_ms: float | None = None
    """Of 100 steps in which a text decodes, 99 are to take no longer than this."""
    k_max: int = 8
    """No draft has more levels than this; a chain has as many tokens."""
    static_k: int = 4
    """The k of kind = "static"."""
    half_life: float = 32.0
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
    tenants: tuple[TenantSettings, ...] = ()
