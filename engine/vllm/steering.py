"""From vLLM's requests to our policy, and from its decisions back to drafts. Knows vLLM's objects by what it reads of
them, and imports nothing of vLLM.

step k    how far vLLM's drafter drafts at the end of a step, for all requests alike: what drafting costs
cut       what a request verifies of its draft in the next step: what verification costs
seen      drafts that cost nothing to make, such as lookups. They are made as long as they can be, and the policy
          chooses, when it sees them, how much of each is verified
ahead     drafts that cost a pass of a model a level, and all those of vLLM's asynchronous scheduler, which schedules
          before the draft is there. The policy chooses a step ahead; step k is the largest choice, each request is cut
          to its own
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import ClassVar, Final, NamedTuple

from engine.api import Round
from engine.classes import MOST, ClassNames
from engine.telling import Turns, told
from engine.vllm.options import FIXED
from engine.vllm.running import Running, Text
from policies.base import (
    Account,
    Decision,
    Drafting,
    LoadView,
    Observation,
    Option,
    RequestView,
    StepSeen,
)
from policies.controller import Controller
from policies.cost import DraftCost, StepCosts
from policies.settings import PolicySettings

_LOOKUPS: Final = frozenset({"ngram", "suffix"})

_RUNS: Final = (1, 4, 12)
"""Bounds of grades: of a text's `run`. What is being copied goes on being copied."""

_STARTS: Final = StepCosts(steps=((1, 1.0), (2, 1.03)))
_LOOKUP: Final = DraftCost(
    level=0.01, fixed=0.04, node=0.01
)  # in plain steps: what verifying costs beside the rows
_MODEL: Final = DraftCost(level=0.15, fixed=0.05)


class Drafter(NamedTuple):
    """What vLLM was configured to draft with."""

    method: str
    most: int  # tokens of a draft
    lengths: tuple[int, ...]  # that step k may have, ascending
    asynchronous: bool = False

    @property
    def is_seen(self) -> bool:
        """See the module."""
        return not self.asynchronous and (self.method in _LOOKUPS or self.method in FIXED)

    @property
    def is_certain(self) -> bool:
        """Whether what it guesses is compared with what the target says, and with nothing of its own."""
        return self.method in _LOOKUPS

    @property
    def costs(self) -> StepCosts:
        """To begin with, in plain steps."""
        cost = _LOOKUP if self.is_seen else _MODEL
        return StepCosts(_STARTS.steps, drafts={self.method: cost}, untimed=(self.method,))

    def at_least(self, k: int) -> int:
        """The least step k that covers a draft of so many tokens."""
        return next((length for length in self.lengths if length >= k), self.most)


class Plan(NamedTuple):
    """What a request verifies in a step, and why."""

    text: Text
    decision: Decision
    offered: Sequence[int]  # the draft, also what was cut off; negative tokens are not known yet
    drafted: int  # of these, verified
    option: Option | None  # that was offered
    behind: Account | None  # the decision, if its turn to be told of has come

    def verifying(self, drafted: int) -> "Plan":
        """The plan, as far as vLLM has scheduled it."""
        return self if drafted == self.drafted else self._replace(drafted=drafted)


class Shown(NamedTuple):
    """What came of a plan. `examined` and `accepted` are of the tokens that were verified."""

    plan: Plan
    examined: int
    accepted: int
    evidence: Observation | None

    def round(self) -> Round:
        """As it is reported."""
        text, decision, _, drafted, _, behind = self.plan
        proposer = "none" if decision.option is None else decision.option.proposer
        found = Round(
            request=text.name,
            traffic_class=text.traffic_class,
            proposer=proposer,
            k=decision.k,
            drafted=drafted,
            examined=self.examined,
            accepted=self.accepted,
            reason=decision.reason,
            text=decision.text,
        )
        return found if behind is None else told(found, behind)


class Steering(ABC):
    """The policy, with what vLLM's scheduler needs of it."""

    is_ahead: ClassVar[bool] = False
    """Whether a step pays for the drafts of the next one."""

    def __init__(self, drafter: Drafter, settings: PolicySettings, *, longest: int) -> None:
        """longest: tokens that a context holds."""
        self.drafter = drafter
        self.policy = Controller(settings, drafter.costs)
        self.decisions = 0
        """Steps that were decided."""
        self.tells = True
        """Whether anybody is told what is behind decisions."""
        self._longest = longest
        self._texts: dict[str, Text] = {}
        self._classes = ClassNames(MOST + 1)  # those that the daemon lets in, and its canary
        self._measured = False
        self._turns = Turns()
        self._behind: dict[str, Account] = {}  # of the last decisions, those of which it is told

    @staticmethod
    def of(drafter: Drafter, settings: PolicySettings, *, longest: int) -> "Steering":
        """The kind that this drafter needs."""
        kind: type[Steering] = Seen if drafter.is_seen else Ahead
        return kind(drafter, settings, longest=longest)

    @abstractmethod
    def cut(self, decoding: Sequence[Running], load: LoadView) -> list[Plan]:
        """Before a step is scheduled: cut the drafts of those that decode, and say what for."""

    @abstractmethod
    def draft(self, decoding: Sequence[Running], load: LoadView) -> int:
        """Once it is scheduled: step k, for those that decode in the next one."""

    def configure(self, settings: PolicySettings) -> None:
        """From the next decision on. Raises ValueError, changing nothing, for a kind that does not exist."""
        self.policy.configure(settings)

    def text(self, request: Running) -> Text:
        """What is known of it."""
        found = self._texts.get(request.request_id)
        if found is None:
            found = self._texts[request.request_id] = Text.of(request)
            found.traffic_class = self._classes.known(found.traffic_class)
        return found

    def knows(self, text: Text) -> bool:
        """Whether it has not ended."""
        return self._texts.get(text.key) is text

    def forget(self, key: str) -> Text | None:
        """It has ended."""
        self.policy.forget(key)
        return self._texts.pop(key, None)

    def show(self, plan: Plan, said: Sequence[int], unmakeable: int) -> Shown:
        """What the target said where a plan was carried out. unmakeable: verified tokens that a grammar forbids."""
        drafted = plan.drafted - unmakeable
        accepted = min(max(len(said) - 1, 0), drafted)
        examined = min(accepted + 1, drafted)
        if not plan.text.hosted:
            plan.text.tally.add(plan.decision.k, self.drafter.method, drafted, examined, accepted)
        evidence = self._evidence(plan, said, drafted, examined, accepted)
        return Shown(plan.verifying(drafted), examined, accepted, evidence)

    def observe(self, shown: Sequence[Shown], step: StepSeen) -> None:
        """Have the policy learn from a step that is done."""
        if not self._measured and step.sequences and not step.prefill_rows:
            self._measured = True
            self.policy.reckon(self._first_costs(step))
        self.policy.observe([each.evidence for each in shown if each.evidence is not None], step)

    @abstractmethod
    def drafting(self, plans: Sequence[Plan], k: int, decoding: int) -> tuple[Drafting, ...]:
        """What drafts add to what a step takes, for the costs: nobody times it. plans: of those that it verifies.
        k: step k, for so many that decode in the next one.
        """

    def _evidence(
        self, plan: Plan, said: Sequence[int], drafted: int, examined: int, accepted: int
    ) -> Observation | None:
        """What verification has shown, and for certain drafts what the target's own token says of the next guess."""
        if self.drafter.is_certain and plan.offered and plan.offered[0] >= 0:
            accepted = matched(plan.offered, said)
            wrong = accepted < min(len(plan.offered), len(said))
            examined = accepted + wrong
            plan.text.run = 0 if wrong else plan.text.run + accepted
        else:
            plan.text.run = 0
        if not examined or plan.option is None:
            return None
        return Observation(
            plan.text.key,
            plan.text.traffic_class,
            plan.option.proposer,
            max(drafted, examined),
            examined,
            accepted,
            plan.option.grade,
        )

    def _first_costs(self, step: StepSeen) -> StepCosts:
        """Of this host, by the first step that tells anything of it."""
        costs = self.drafter.costs
        slower = step.seconds / costs.of(step)
        steps = tuple((rows, cost * slower) for rows, cost in costs.steps)
        drafts = {name: cost.times(slower) for name, cost in costs.drafts.items()}
        return StepCosts(steps, drafts=drafts, untimed=costs.untimed)

    def _view(self, text: Text, request: Running, options: tuple[Option, ...]) -> RequestView:
        remaining = min(request.max_tokens - request.num_output_tokens, self._longest - request.num_tokens)
        return RequestView(
            text.key,
            text.traffic_class,
            text.tenant,
            max(remaining, 1),
            request.num_tokens,
            text.speculate,
            text.fixed_k,
            0,
            options if text.speculate and text.proposer in {None, self.drafter.method} else (),
            text.k_max,
        )

    def _decide(self, load: LoadView, views: Sequence[RequestView]) -> list[Decision]:
        if not views:
            return []
        self.decisions += 1
        decisions = self.policy.decide(load, views)
        place = self._turns.next(len(views)) if self.tells else None
        self._behind = {} if place is None else {views[place].request: self.policy.account(place)}
        return decisions


class Seen(Steering):
    """Of drafts that are there before it is chosen how much of them is verified."""

    def cut(self, decoding: Sequence[Running], load: LoadView) -> list[Plan]:
        """See Steering."""
        texts = [self.text(request) for request in decoding]
        offers = [self._offer(text, request) for text, request in zip(texts, decoding, strict=True)]
        pairs = zip(texts, decoding, offers, strict=True)
        views = [
            self._view(text, request, () if offer is None else (offer,)) for text, request, offer in pairs
        ]
        plans = []
        for text, request, offer, decision in zip(
            texts, decoding, offers, self._decide(load, views), strict=True
        ):
            draft = request.spec_token_ids
            if len(draft) > decision.k:
                request.spec_token_ids = draft[: decision.k]
            plans.append(
                Plan(text, decision, draft, min(len(draft), decision.k), offer, self._behind.get(text.key))
            )
        return plans

    def draft(self, decoding: Sequence[Running], load: LoadView) -> int:  # noqa: ARG002
        """See Steering."""
        if self.drafter.method in FIXED:
            return self.drafter.most
        asked = any(self.text(request).fixed_k for request in decoding)
        return self.drafter.most if asked or self.policy.wants_options else self.drafter.at_least(0)

    def drafting(self, plans: Sequence[Plan], k: int, decoding: int) -> tuple[Drafting, ...]:  # noqa: ARG002
        """See Steering. To make them is next to nothing, but what is verified costs more than its rows."""
        lengths = [plan.drafted for plan in plans if plan.drafted]
        if not lengths:
            return ()
        return (Drafting(self.drafter.method, 0.0, len(lengths), max(lengths), sum(lengths)),)

    def _offer(self, text: Text, request: Running) -> Option | None:
        if not request.spec_token_ids:
            return None
        return _option(self.drafter.method, len(request.spec_token_ids), _grade(text.run))


class Ahead(Steering):
    """Of drafts whose length is chosen before they are made."""

    is_ahead = True

    def cut(self, decoding: Sequence[Running], load: LoadView) -> list[Plan]:  # noqa: ARG002
        """See Steering."""
        plans = []
        for request in decoding:
            text = self.text(request)
            draft = request.spec_token_ids[: text.ahead.k]
            request.spec_token_ids = draft
            behind = self._behind.get(text.key)
            plans.append(Plan(text, text.ahead, draft, len(draft), text.ahead.option, behind))
        return plans

    def draft(self, decoding: Sequence[Running], load: LoadView) -> int:
        """See Steering. Whoever is not among these verifies nothing in the next step."""
        wants, offer = self.policy.wants_options, (_option(self.drafter.method, self.drafter.most, 0),)
        texts = [self.text(request) for request in decoding]
        views = [
            self._view(text, request, offer if wants or text.fixed_k else ())
            for text, request in zip(texts, decoding, strict=True)
        ]
        longest = 0
        for text, decision in zip(texts, self._decide(load, views), strict=True):
            text.ahead = decision
            longest = max(longest, decision.k)
        return self.drafter.at_least(longest)

    def drafting(self, plans: Sequence[Plan], k: int, decoding: int) -> tuple[Drafting, ...]:  # noqa: ARG002
        """See Steering. The step makes the drafts of the next one, for all alike."""
        return (Drafting(self.drafter.method, 0.0, decoding, k, k * decoding),) if k and decoding else ()


def matched(draft: Sequence[int], said: Sequence[int]) -> int:
    """Tokens in which they begin alike."""
    count = 0
    for guess, token in zip(draft, said, strict=False):
        if guess != token:
            break
        count += 1
    return count


def _grade(run: int) -> int:
    return sum(run >= bound for bound in _RUNS)


@cache
def _option(method: str, k: int, grade: int) -> Option:
    return Option(method, k, grade)
