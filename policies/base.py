"""The vocabulary that the engine and every policy share.

target      the model whose law the output follows
draft       a run of guessed tokens; `k` is its length
drafted     tokens that a proposer put forward in a round
examined    drafted tokens that verification looked at: the accepted ones and the first rejected one;
            what comes after the first rejection says nothing about the draft
accepted    examined tokens that were kept
round       one request's draft and verification in one engine step
forced      tokens that a request's grammar leaves no choice about: drafts that are always kept, by the proposer
            `GRAMMAR`; they say nothing of the engine's own draft, so no estimate and no alarm counts them
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple, Protocol

GRAMMAR: Final = "grammar"
"""The proposer of forced tokens."""


class Reason(StrEnum):
    """Why a round got its k. The values are label values of `specd_policy_decisions_total`."""

    ACCEPTANCE = "acceptance"  # the estimate of this request's acceptance made this k the best
    CLASS_PRIOR = "class_prior"  # the request is new: k follows from what its class has shown
    LOW_ACCEPTANCE = "low_acceptance"  # k = 0: a draft would cost more than it brings
    PROBE = "probe"  # a short draft while drafting is off, to keep the evidence fresh
    LOAD_CAP = "load_cap"  # the load table allows fewer than wanted
    LOAD_OFF = "load_off"  # too many running requests: drafting is off
    TENANT_CAP = "tenant_cap"  # what is configured for its tenant allows fewer than wanted
    STATIC = "static"  # a fixed k by configuration
    DISABLED = "disabled"  # drafting is off by configuration
    REQUEST_FIXED = "request_fixed"  # the request asked for this k
    REQUEST_CAP = "request_cap"  # the request allows fewer than wanted
    REQUEST_OFF = "request_off"  # the request asked not to be speculated
    FORCED = "forced"  # the grammar leaves no choice: a draft that costs rows and nothing else
    NO_OFFER = "no_offer"  # no proposer has a guess for this text now
    NO_ROOM = "no_room"  # remaining tokens, context or KV blocks allow fewer
    SLOWER = "slower"  # k = 0: at this load, drafting was measured to be slower than none
    PLAIN = "plain"  # k = 0 for one step, to measure what a step without drafts takes


class LoadState(IntEnum):
    """What the load policy allows. The values are those of `specd_load_state`."""

    FULL = 0
    SHRUNK = 1
    OFF = 2


class Option(NamedTuple):
    """What a proposer could do for a request in this round."""

    proposer: str
    k: int  # levels that it can draft now, at most
    grade: int = 0  # how good it finds its own guess; each grade's acceptance is learned apart
    width: int = 1  # nodes a level, about: 1 is a chain, more is a tree
    owed: int = 0  # tokens of the text that it must read before it can guess, beside the last one

    def nodes(self, k: int, most: int) -> int:
        """Tokens of a tree of k levels, at most `most`; 0 for a chain, whose levels say it."""
        return min(self.width * k, most) if self.width > 1 else 0


class Decision(NamedTuple):
    """How far to draft for one request in one round, who does it, and why."""

    k: int  # levels: of a chain, its tokens
    reason: Reason
    text: str  # one clause for people: "load cap: 17 running >= 16"
    option: Option | None = None  # None: nobody drafts, or the grammar does
    nodes: int = 0  # tokens of a tree in all, >= k; 0 for a chain

    @property
    def tokens(self) -> int:
        """Drafted tokens that are to be verified, at most: each costs a row."""
        return self.nodes or self.k


class Account(NamedTuple):
    """What was behind a decision, for people."""

    text: str  # the decision's clause, with what was expected
    goodput: float = 0.0  # tokens a second that the step was expected to bring; 0 where that was not reckoned
    alternatives: tuple[tuple[str, int, float], ...] = ()
    """(proposer, k, goodput had it been chosen) of the two best others, the better one first; "none" for k = 0."""


class RequestView(NamedTuple):
    """What a policy may know of a running request."""

    request: str
    traffic_class: str
    tenant: str
    remaining_tokens: int  # tokens that may still be generated, >= 1
    context_tokens: int
    speculate: bool  # False: the request asked for plain decoding
    fixed_k: int | None  # the request's own draft length, None for the policy's choice
    forced: int = 0  # next tokens that its grammar leaves no choice about
    options: tuple[Option, ...] = ()  # to choose from, proposers in the order of the configuration
    k_max: int | None = None  # levels that the request allows, at most


@dataclass(frozen=True, slots=True)
class LoadView:
    """What a policy may know of the machine at the start of a step."""

    running: int  # requests decoding or in prefill
    waiting: int
    kv_free: float  # share of KV blocks that are free, 0 to 1
    now: float = 0.0  # seconds on a clock that never goes back
    context: int = 0  # tokens that those which decode attend to, summed over them
    prefill_rows: int = 0  # of prompts, in the step that starts now


@dataclass(frozen=True, slots=True)
class Observation:
    """What one round showed, in levels of its draft. `accepted <= examined <= drafted`, and `examined - accepted` is 0
    or 1.
    """

    request: str
    traffic_class: str
    proposer: str
    drafted: int
    examined: int
    accepted: int
    grade: int = 0  # of the option that was chosen
    width: int = 1
    chances: tuple[float, ...] = ()
    """By examined level, where the guess was drawn from a law: with which probability it was to be accepted. This has
    the mean of what was accepted, and less spread. Empty where nobody knows.
    """


@dataclass(frozen=True, slots=True)
class Drafting:
    """What one proposer did in a step, for all the requests that were left to it."""

    proposer: str
    seconds: float
    requests: int
    levels: int  # of the deepest draft
    tokens: int  # of all drafts
    owed: int = 0  # tokens that it had to read before


@dataclass(frozen=True, slots=True)
class StepSeen:
    """What a step took. A policy learns this host's costs from it; which of it tells of a cost is for it to say."""

    now: float  # seconds at its end, on the clock of LoadView.now
    seconds: float  # all of it, drafting included
    rows: int  # of the target's forward, prompts and padding included
    prefill_rows: int
    padding: int
    sequences: int  # that decoded
    context: int  # tokens that they attended to, summed over them
    committed: int  # tokens that they gained
    drafting: tuple[Drafting, ...] = ()
    behind: int = 0  # how many decisions were made since its own, where steps overlap
    before: tuple[Drafting, ...] | None = None  # what made its drafts, where that was the step before


class Policy(Protocol):
    """Chooses every running request's k at each step; the engine calls it between schedule and draft."""

    @property
    def load_state(self) -> LoadState:
        """What the load allowed at the last `decide`."""

    @property
    def wants_options(self) -> bool:
        """Whether the next `decide` looks at what there is to draft with; else requests come without options."""
        return True

    def decide(self, load: LoadView, requests: Sequence[RequestView]) -> list[Decision]:
        """One decision per request, in order. Advances the policy's own step count by one."""

    def account(self, place: int) -> Account:  # noqa: ARG002
        """What was behind a decision of the last `decide`, by its place there. Costs more than the decision did."""
        return Account("")

    def observe(self, observations: Sequence[Observation], step: StepSeen) -> None:
        """Learn from the rounds of the step just committed, and from what it took."""

    def forget(self, request: str) -> None:
        """The request has ended: drop its state. Unknown requests are ignored."""
