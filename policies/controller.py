"""The one place where it is chosen who drafts, and how far: proposer, levels and nodes.

For each request, in this order; the reason names what settled it last:

    forced  tokens that a grammar leaves no choice about, whatever the load: they are always kept
    wanted  0 if the request or the configuration says so, else the request's own k, else the chooser's
            (`policies.textbook`); by whichever of the options offered brings most (`policies.picker`)
    load    no more levels than the load allows (`policies.load`), and no trees unless it allows all; no more than the
            operator allows to its tenant, and the request to itself (`policies.tenants`)
    room    no more than remaining_tokens - 1: every round commits one token of the target's own
    probe   a draft for the evidence where there would be none (`policies.probe`)
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from policies.acceptance import AcceptanceEstimates, ClassAcceptance
from policies.adaptive import Adaptive
from policies.asked import Allowed, Fields
from policies.base import (
    GRAMMAR,
    Account,
    Decision,
    LoadState,
    LoadView,
    Observation,
    Policy,
    Reason,
    RequestView,
    StepSeen,
)
from policies.cost import DraftCost, StepCosts
from policies.cost_error import CostError
from policies.cost_model import CostModel
from policies.load import NO_CAP, LoadLimit, LoadPolicy
from policies.picker import Picker
from policies.probe import Probes
from policies.settings import PolicySettings
from policies.tenants import Cap, caps
from policies.textbook import at, chooser

_BY_NUMBERS: Final = frozenset({Reason.ACCEPTANCE, Reason.CLASS_PRIOR, Reason.LOW_ACCEPTANCE})
_UNTOLD: Final = (Reason.NO_OFFER, Reason.LOAD_OFF, Reason.DISABLED, Reason.REQUEST_OFF, Reason.FORCED)
"""Reasons that no numbers were looked at for."""

_LOT: Final = 3
"""Steps whose rounds are learned from together: an estimate moves little in so few, and learning has its price."""

_UNCAPPED: Final = Cap(NO_CAP, chains=False, text="")
_REQUEST_OFF: Final = Decision(0, Reason.REQUEST_OFF, "the request asked for plain decoding")


class _Ceilings(NamedTuple):
    """What holds a step's drafts back."""

    limit: LoadLimit
    of_load: Decision
    caps: Mapping[int, Cap]  # of tenants, and of requests by their own word; by place

    @property
    def are_none(self) -> bool:
        """Whether nothing is held back."""
        return self.limit.state is LoadState.FULL and self.limit.bound is None and not self.caps

    def of(self, place: int) -> Decision:
        """By load, tenant and the request itself."""
        return _lower(self.of_load, self.caps.get(place))

    def allowed(
        self, load: LoadView, fields: Fields, places: Sequence[int], *, sequences: int, drafted: int
    ) -> Allowed:
        """To these requests, which have these places among all that decode in their step. drafted: rows that others'
        drafts have.
        """
        left = np.array(fields.remaining_tokens) - 1
        most = np.minimum(left, self.limit.cap)
        room, trees = left, np.array([self.limit.state is LoadState.FULL])
        if self.caps:
            mine = [self.caps.get(place, _UNCAPPED) for place in places]
            levels = np.array([cap.k for cap in mine])
            most, room = np.minimum(most, levels), np.minimum(room, levels)
            trees = trees & ~np.array([cap.chains for cap in mine])

        def why(i: int) -> Decision:
            above = self.of(places[i])
            return above if above.k <= left[i] else _no_room(int(left[i]))

        rows = load.prefill_rows + sequences + drafted
        return Allowed(most, room, trees, self.limit.bound, sequences, rows, drafted, load.context, why)


class Controller(Policy):
    """Implements `policies.base.Policy` by composing estimates, costs, chooser, load policy and probes."""

    def __init__(self, settings: PolicySettings, costs: StepCosts | None = None) -> None:
        """costs: of this engine on this host, as far as they are known."""
        self._costs = CostModel(costs or StepCosts())
        self._estimates = AcceptanceEstimates(settings.half_life, settings.prior)
        agreed = _agreed(self._costs.now, settings)
        self._picker = Picker(self._estimates, agreed, settings)
        self._load = LoadPolicy(settings)
        self._probes = Probes(settings, self._picker)
        self._adaptive = Adaptive(self._estimates, agreed, settings)
        self._state = LoadState.FULL
        self._decisions: list[Decision] = []  # of the last step
        self._requests: Sequence[RequestView] = ()  # of the same, where each was decided by itself
        self._places: Sequence[int] = ()  # of those of its requests that were decided together
        self._shown: list[Observation] = []  # of the steps that are to be learned from
        self._lot = 0  # how many these are
        self._apply(settings)

    @property
    def load_state(self) -> LoadState:
        """What the load allowed at the last `decide`; FULL before the first."""
        return self._state

    @property
    def costs(self) -> StepCosts:
        """As they are now, by what each step took."""
        return self._costs.now

    def cost_errors(self) -> tuple[CostError, ...]:
        """See CostModel.error."""
        return self._costs.error()

    def configure(self, settings: PolicySettings) -> None:
        """Take other settings from the next step on, keeping all that was learned.

        Raises ValueError, and changes nothing, when they name a kind that does not exist.
        """
        self._apply(settings)
        self._learn()
        self._estimates.configure(settings.half_life, settings.prior)
        costs = _agreed(self._costs.now, settings)
        self._picker.configure(costs, settings)
        self._adaptive.configure(costs, settings)
        self._load.configure(settings)
        self._probes.configure(settings)

    def recheck(self) -> None:
        """Others draft than before, or otherwise: whether it is faster than not to is to be measured anew."""
        self._adaptive.recheck()

    def reckon(self, costs: StepCosts) -> None:
        """Begin with other costs from the next step on; those that the settings name stay."""
        self._costs.begin(costs)
        self._reckon()

    def adopt(self, drafts: Mapping[str, DraftCost]) -> None:
        """Take other costs of the drafts of some, and keep what was learned of all else."""
        self._costs.adopt(drafts)
        self._reckon()

    def decide(self, load: LoadView, requests: Sequence[RequestView]) -> list[Decision]:
        """One decision per request, in order. Advances the counts of load policy and probes by one step."""
        limit = self._load.step(load)
        self._state = limit.state
        self._picker.start(len(requests), trees=limit.state is LoadState.FULL)
        reason = Reason.LOAD_CAP if limit.cap else Reason.LOAD_OFF
        ceiling = Decision(limit.cap, reason, limit.text)
        own = caps(requests, self._settings.tenants)
        if own:
            requests = [_chains(request, own.get(place)) for place, request in enumerate(requests)]
        if self._together and requests:
            return self._decide_together(load, requests, _Ceilings(limit, ceiling, own))
        decisions = [
            self._forced(request) or self._chosen(request, _lower(ceiling, own.get(place)))
            for place, request in enumerate(requests)
        ]
        self._note(requests, decisions)
        self._probes.place(requests, decisions, limit)
        for place, cap in own.items():
            decisions[place] = _within(decisions[place], cap)
        self._decisions, self._requests = decisions, requests
        return decisions

    def observe(self, observations: Sequence[Observation], step: StepSeen) -> None:
        """Learn from the rounds of the step just committed; from forced tokens there is nothing to learn."""
        self._load.observe(step)
        if self._together:
            self._adaptive.observe(step)
        if self._costs.observe(step):
            self._reckon()
        self._shown += [seen for seen in observations if seen.proposer != GRAMMAR]
        self._lot += 1
        if self._lot >= _LOT or not self._together:
            self._learn()

    def account(self, place: int) -> Account:
        """See Policy. Numbers are there where they were looked at."""
        decision = self._decisions[place]
        told = decision.reason not in _UNTOLD
        if told and not self._together:
            return self._picker.account(self._requests[place], decision)
        if not told or place not in self._places:
            return Account(decision.text)
        why = None if decision.reason in _BY_NUMBERS else decision.text
        return self._adaptive.account(self._places.index(place), why)

    def forget(self, request: str) -> None:
        """The request has ended: drop its state. What its class learned from it stays."""
        self._learn()
        self._adaptive.forget(request)
        self._estimates.forget(request)
        self._picker.forget(request)
        self._probes.forget(request)

    def class_acceptance(self) -> list[ClassAcceptance]:
        """What each class has shown."""
        self._learn()
        return self._estimates.classes()

    @property
    def wants_options(self) -> bool:
        """See Policy."""
        return self._drafting and (not self._together or self._adaptive.wants_options)

    def _decide_together(
        self, load: LoadView, requests: Sequence[RequestView], ceilings: "_Ceilings"
    ) -> list[Decision]:
        """Those who leave it to the policy, all at once; the others as they ask."""
        fields, count = Fields(*zip(*requests, strict=True)), len(requests)
        if all(fields.speculate) and not any(fields.forced) and fields.fixed_k.count(None) == count:
            self._decisions, self._places = self._decided(load, fields, ceilings), range(count)
        else:
            self._decide_apart(load, requests, ceilings)
        return self._decisions

    def _decided(self, load: LoadView, fields: Fields, ceilings: "_Ceilings") -> list[Decision]:
        count = len(fields.request)
        if ceilings.are_none:
            again = self._adaptive.again(fields, load.prefill_rows + count)
            if again is not None:
                return again
        allowed = ceilings.allowed(load, fields, range(count), sequences=count, drafted=0)
        return self._adaptive.decide(fields, allowed)

    def _decide_apart(self, load: LoadView, requests: Sequence[RequestView], ceilings: "_Ceilings") -> None:
        """Where some ask for something of their own."""
        decisions = {
            place: self._forced(request) or self._chosen(request, ceilings.of(place))
            for place, request in enumerate(requests)
            if request.forced or not request.speculate or request.fixed_k is not None
        }
        free = [place for place in range(len(requests)) if place not in decisions]
        if free:
            drafted = sum(each.tokens for each in decisions.values())
            fields = Fields(*zip(*(requests[place] for place in free), strict=True))
            allowed = ceilings.allowed(load, fields, free, sequences=len(requests), drafted=drafted)
            decisions |= zip(free, self._adaptive.decide(fields, allowed), strict=True)
        else:
            self._adaptive.stand_aside()
        self._places = free
        self._decisions = [decisions[place] for place in range(len(requests))]

    def _learn(self) -> None:
        """From all rounds that were seen."""
        if self._shown:
            self._estimates.observe(self._shown)
            self._adaptive.reconsider()
        self._shown, self._lot = [], 0

    def _reckon(self) -> None:
        costs = _agreed(self._costs.now, self._settings)
        self._adaptive.reckon(costs)
        self._picker.configure(costs, self._settings)

    def _apply(self, settings: PolicySettings) -> None:
        self._chooser = chooser(settings, self._picker)
        self._settings = settings
        self._together = settings.kind == "goodput" and settings.k_max > 0
        self._k_max = settings.k_max
        self._drafting = settings.kind != "off" and settings.k_max > 0

    def _forced(self, request: RequestView) -> Decision | None:
        """A draft of forced tokens alone, if there are any and the request may be drafted for."""
        if not (request.forced and request.speculate and self._drafting):
            return None
        own = [k for k in (request.fixed_k, request.k_max) if k is not None]
        k = min(request.forced, self._k_max, request.remaining_tokens - 1, *own)
        return _forced(k) if k > 0 else None

    def _chosen(self, request: RequestView, ceiling: Decision) -> Decision:
        if ceiling.k == 0 and self._drafting and request.speculate and request.fixed_k != 0:
            return ceiling  # what would have been best is a lot to ask where many run
        wanted = self._wanted(request, self._k_max)
        room = request.remaining_tokens - 1
        most = min(ceiling.k, room)
        if wanted.k <= most:
            return wanted
        why = ceiling if ceiling.k <= room else _no_room(room)
        return self._wanted(request, most)._replace(reason=why.reason, text=why.text) if most else why

    def _wanted(self, request: RequestView, most: int) -> Decision:
        """The best draft of at most so many levels."""
        if not request.speculate:
            return _REQUEST_OFF
        if request.fixed_k is None or not self._drafting:
            return self._chooser.wanted(request, most)
        return self._fixed(request, request.fixed_k, most)

    def _fixed(self, request: RequestView, asked: int, most: int) -> Decision:
        beyond = f", k_max is {self._k_max}" if asked > self._k_max else ""
        text = f"the request asked for k = {asked}{beyond}"
        return at(self._picker, request, min(asked, most), Reason.REQUEST_FIXED, text)

    def _note(self, requests: Sequence[RequestView], decisions: Sequence[Decision]) -> None:
        for request, decision in zip(requests, decisions, strict=True):
            if decision.option is not None:
                self._picker.drafted(request.request, decision.option)


def _agreed(costs: StepCosts, settings: PolicySettings) -> StepCosts:
    """What was measured, but for what the operator has said."""
    if settings.row_cost is not None:
        costs = costs.with_row(settings.row_cost)
    return costs if settings.draft_cost is None else costs.with_level(settings.draft_cost)


def _lower(ceiling: Decision, cap: Cap | None) -> Decision:
    """What both allow."""
    return ceiling if cap is None or ceiling.k <= cap.k else Decision(cap.k, cap.reason, cap.text)


def _within(decision: Decision, cap: Cap) -> Decision:
    """The decision, where the cap allows that much. Forced tokens are no guesses, and never lost."""
    if decision.k <= cap.k or decision.reason is Reason.FORCED:
        return decision
    return Decision(0, cap.reason, cap.text)


def _chains(request: RequestView, cap: Cap | None) -> RequestView:
    """The request, without trees where its tenant's tokens are counted."""
    if cap is None or not cap.chains:
        return request
    return request._replace(options=tuple(option for option in request.options if option.width == 1))


@cache
def _forced(k: int) -> Decision:
    return Decision(k, Reason.FORCED, f"forced: the grammar allows one text only for {k} tokens")


@cache
def _no_room(room: int) -> Decision:
    text = f"no room: {room + 1} tokens remain, one is the target's own"
    return Decision(room, Reason.NO_ROOM, text)
