"""The one place where k is chosen.

For each request, in this order; the reason names what settled it last:

    forced  tokens that a grammar leaves no choice about, whatever the load: they are always kept
    wanted  0 if the request or the configuration says so, else the request's own k, else the chooser's
            (`policies.textbook`)
    load    no more than the load allows (`policies.load`)
    offer   no more than the proposer has; 0 where none has a guess
    room    no more than remaining_tokens - 1: every round commits one token of the target's own
    probe   a short draft where k = 0 leaves no evidence (`policies.probe`)
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from policies.acceptance import AcceptanceEstimates, ClassAcceptance
from policies.base import GRAMMAR, Decision, LoadState, LoadView, Observation, Policy, Reason, RequestView
from policies.load import LoadPolicy
from policies.probe import Probes
from policies.settings import PolicySettings
from policies.textbook import chooser

_NO_OFFER: Final = Decision(0, Reason.NO_OFFER, "no proposer has a guess")
_REQUEST_OFF: Final = Decision(0, Reason.REQUEST_OFF, "the request asked for plain decoding")


class Controller(Policy):
    """Implements `policies.base.Policy` by composing estimates, chooser, load policy and probes."""

    def __init__(self, settings: PolicySettings) -> None:
        self._estimates = AcceptanceEstimates(settings.half_life, settings.prior)
        self._load = LoadPolicy(settings.load, settings.k_max)
        self._probes = Probes(settings)
        self._state = LoadState.FULL
        self._apply(settings)

    @property
    def load_state(self) -> LoadState:
        """What the load allowed at the last `decide`; FULL before the first."""
        return self._state

    def configure(self, settings: PolicySettings) -> None:
        """Take other settings from the next step on, keeping all that was learned.

        Raises ValueError, and changes nothing, when they name a kind that does not exist.
        """
        self._apply(settings)
        self._estimates.configure(settings.half_life, settings.prior)
        self._load.configure(settings.load, settings.k_max)
        self._probes.configure(settings)

    def decide(self, load: LoadView, requests: Sequence[RequestView]) -> list[Decision]:
        """One decision per request, in order. Advances the counts of load policy and probes by one step."""
        limit = self._load.step(load.running)
        self._state = limit.state
        reason = Reason.LOAD_CAP if limit.cap else Reason.LOAD_OFF
        ceiling = Decision(limit.cap, reason, limit.text)
        decisions = [self._forced(request) or self._chosen(request, ceiling) for request in requests]
        self._probes.place(requests, decisions, limit)
        return decisions

    def observe(self, observations: Sequence[Observation]) -> None:
        """Learn from the rounds of the step just committed; from forced tokens there is nothing to learn."""
        for observation in observations:
            if observation.proposer != GRAMMAR:
                self._estimates.observe(observation)

    def forget(self, request: str) -> None:
        """The request has ended: drop its state. What its class learned from it stays."""
        self._estimates.forget(request)
        self._probes.forget(request)

    def class_acceptance(self) -> list[ClassAcceptance]:
        """What each class has shown."""
        return self._estimates.classes()

    def _apply(self, settings: PolicySettings) -> None:
        self._chooser = chooser(settings, self._estimates)
        self._k_max = settings.k_max
        self._drafting = settings.kind != "off" and settings.k_max > 0

    def _forced(self, request: RequestView) -> Decision | None:
        """A draft of forced tokens alone, if there are any and the request may be drafted for."""
        if not (request.forced and request.speculate and self._drafting):
            return None
        own = self._k_max if request.fixed_k is None else request.fixed_k
        k = min(request.forced, own, self._k_max, request.remaining_tokens - 1)
        return _forced(k) if k > 0 else None

    def _chosen(self, request: RequestView, ceiling: Decision) -> Decision:
        return _within_room(_by(request, _lower(self._wanted(request), ceiling)), request)

    def _wanted(self, request: RequestView) -> Decision:
        if not request.speculate:
            return _REQUEST_OFF
        if request.fixed_k is None or not self._drafting:
            return self._chooser.wanted(request)
        return self._fixed(request.fixed_k)

    def _fixed(self, asked: int) -> Decision:
        beyond = f", k_max is {self._k_max}" if asked > self._k_max else ""
        return Decision(
            min(asked, self._k_max), Reason.REQUEST_FIXED, f"the request asked for k = {asked}{beyond}"
        )


@cache
def _forced(k: int) -> Decision:
    return Decision(k, Reason.FORCED, f"forced: the grammar allows one text only for {k} tokens")


def _by(request: RequestView, wanted: Decision) -> Decision:
    """The decision, left to the first of those who can draft."""
    if wanted.k == 0:
        return wanted
    if not request.options:
        return _NO_OFFER
    option = request.options[0]
    if wanted.k > option.k:
        return Decision(option.k, wanted.reason, f"{wanted.text}, {option.proposer} has {option.k}", option)
    return replace(wanted, option=option)


def _lower(wanted: Decision, ceiling: Decision) -> Decision:
    return ceiling if wanted.k > ceiling.k else wanted


def _within_room(decision: Decision, request: RequestView) -> Decision:
    room = request.remaining_tokens - 1
    if decision.k <= room:
        return decision
    return Decision(
        room,
        Reason.NO_ROOM,
        f"no room: {request.remaining_tokens} tokens remain, one is the target's own",
        decision.option if room else None,
    )
