"""kind = "goodput": what brings a running batch the most tokens a second, by what was measured here.

columns   what is offered, as arrays                                    policies.columns
standing  what each request had before: no taking to and fro            policies.standing
market    options and lengths of all requests together                  policies.market
check     whether drafting is faster at this load at all, as measured   policies.check
explore   a few drafts for what they show                               policies.exploring
kept      steps that need no decision of their own                      policies.kept
"""

from collections import deque
from typing import Final, NamedTuple

import numpy as np

from policies.acceptance import AcceptanceEstimates
from policies.account import Step, account
from policies.asked import Allowed, Fields
from policies.base import Account, Decision, Reason, StepSeen
from policies.check import Check, Verdict
from policies.choice import LOW, NO_OFFER, OF_CLASS, OWN, PLAIN, PROBE, SLOWER, Choice, Worded
from policies.columns import NO_ARM, Columns, Reader, gains
from policies.cost import FREE, StepCosts
from policies.exploring import Batch, Exploring, Left
from policies.goodput import Allocation, Offers, Prices, plain
from policies.kept import Asked, Kept
from policies.lengths import Floats, Ints
from policies.market import Market
from policies.settings import PolicySettings
from policies.standing import FAVOUR, OFF, Standing

_MOST_BEHIND: Final = 3  # steps that overlap


class Adaptive:
    """Decides for a whole batch at once."""

    def __init__(self, estimates: AcceptanceEstimates, costs: StepCosts, settings: PolicySettings) -> None:
        self._estimates = estimates
        self._reader = Reader(estimates)
        self._standing = Standing()
        self._exploring = Exploring(self._standing, settings)
        self._kept = Kept(self._standing, self._exploring)
        self._steps = 0
        self._ruled_out = 0  # steps in a row in which load or check left no drafts
        self._compared: deque[_Compared | None] = deque([None], maxlen=_MOST_BEHIND + 1)  # the last steps
        self._market = Market()
        self._told: Step | None = None  # behind the last decisions
        self._settled: tuple[Step, _Compared] | None = None  # behind what stands, or is dozed through
        self._worded = Worded(settings)
        self._settings = settings
        self.recheck()
        self.configure(costs, settings)

    def configure(self, costs: StepCosts, settings: PolicySettings) -> None:
        """Take other costs and settings; what was learned and given is kept, but for what the check has found of drafts
        under other settings.
        """
        if settings != self._settings:
            self.recheck()
        self._settings = settings
        self._exploring.configure(settings)
        self._worded.configure(settings)
        self._kept.drop()
        self.reckon(costs)

    def reckon(self, costs: StepCosts) -> None:
        """Take other costs."""
        self.reconsider()
        self._costs = costs
        self._drafts: tuple[tuple[str, ...], Floats] | None = (
            None  # (proposers, what theirs cost): asked in every step
        )

    def recheck(self) -> None:
        """Drafts are others than they were: whether they are faster than none is to be measured anew."""
        # Of steps without drafts of others' choosing, and of those with some: they do not compare.
        self._checks = Check(), Check()

    def reconsider(self) -> None:
        """Something was learned: the next step is decided anew."""
        self._kept.reconsider()

    @property
    def wants_options(self) -> bool:
        """Whether the next step's options are worth looking up: not while drafts are ruled out, but for a probe; nor in
        most steps where none has been worth it for long.
        """
        if self._kept.is_dozing:
            return False
        return not self._ruled_out or (self._ruled_out + 1) % self._settings.probe_every == 0

    def again(self, requests: Fields, rows: int) -> list[Decision] | None:
        """What was decided last, for requests that neither load nor tenants hold back in a step of so many rows, their
        drafts left out; None where `decide` is to be asked.
        """
        decisions = self._kept.dozed(requests.request)
        if decisions is None:
            decisions = self._stood(requests, rows)
        if decisions is not None:
            assert self._settled is not None
            self._steps += 1
            self._told, compared = self._settled
            self._compared.append(compared)
        return decisions

    def _stood(self, requests: Fields, rows: int) -> list[Decision] | None:
        free = min(requests.remaining_tokens) > self._settings.k_max
        drafts = self._checks[False].verdict(len(requests.request)) is Verdict.DRAFT
        return self._kept.stood(_asked(requests, rows)) if free and drafts else None

    def stand_aside(self) -> None:
        """A step is decided in which nobody leaves anything to the policy."""
        self._compared.append(None)

    def decide(self, requests: Fields, allowed: Allowed) -> list[Decision]:
        """One decision for each request."""
        self._steps += 1
        self._kept.drop()
        check = self._checks[allowed.drafted > 0]
        verdict = self._verdict(check, allowed)
        names, classes, options = requests.request, requests.traffic_class, requests.options
        columns = self._reader.columns(names, classes, options)
        rows = self._standing.rows(names)
        of_prompts = self._of_prompts(allowed)
        prices = self._prices(allowed, of_prompts)
        bound = None if allowed.bound is None else allowed.bound - of_prompts
        levels = self._levels(columns, allowed, allowed.room if self._ruled_out else allowed.most)
        added = gains(self._estimates.table, columns, levels, self._settings.k_max)
        if verdict is Verdict.DRAFT and not self._ruled_out:
            found = self._allocated(columns, rows, added, prices, bound)
        else:
            found = plain(len(names), prices)
        batch = Batch(classes, rows, columns, levels, prices, self._settings.tree_nodes)
        settled = Choice(found.place, found.k, self._codes(columns, found, levels, verdict))
        choice = self._explored(batch, found, settled, verdict, bound)
        tried = bool((choice.code == PROBE).any())
        compared = _Compared(check, found.rows > 0)
        # Drafts that are for what they show alone make no step to compare.
        self._compared.append(None if tried and not compared.drafted else compared)
        self._told = Step(
            columns, added, prices, choice.place, choice.k, found, options, self._settings.tree_nodes
        )
        self._settled = self._told._replace(place=settled.place, k=settled.k), compared
        decisions = self._worded.decisions(options, choice)
        if verdict is not Verdict.DRAFT:
            text = check.text(allowed.sequences)
            decisions = [each._replace(text=text) if each.reason in _MEASURED else each for each in decisions]
        lasting = self._worded.decisions(options, settled) if tried else decisions
        self._keep(requests, allowed, batch, verdict, found=found, decisions=lasting, tried=tried)
        return self._held_back(decisions, found.k, allowed)

    def _keep(
        self,
        requests: Fields,
        allowed: Allowed,
        batch: Batch,
        verdict: Verdict,
        *,
        found: Allocation,
        decisions: list[Decision],
        tried: bool,
    ) -> None:
        """Have the next steps do without a decision, where they may. decisions: those that last, without what was
        tried this once.
        """
        if self._kept.blind:
            return
        drafts = bool(found.k.any())
        if drafts or verdict is Verdict.REST or not self._reader.are_all(batch.columns):
            self._kept.was_worth_it(self._steps)
        if not self._is_free(allowed):
            return
        may_doze = not (tried or drafts or self._checks[False].is_trying(allowed.sequences))
        if may_doze and self._kept.doze(requests.request, batch.rows, decisions, self._steps):
            return
        if verdict is Verdict.DRAFT:
            seconds = found.seconds, float(batch.prices.step[0])
            idle = np.flatnonzero(found.k == 0)
            self._kept.stand(_asked(requests, allowed.rows), seconds, batch, idle, decisions)

    def account(self, place: int, why: str | None) -> Account:
        """What was behind a decision of the last `decide`. why: see `policies.account`."""
        assert self._told is not None
        return account(self._told, place, why)

    def observe(self, step: StepSeen) -> None:
        """Learn from what a step took that was decided lately."""
        if step.behind >= len(self._compared):
            return
        compared = self._compared[-1 - step.behind]
        if compared is not None and step.sequences:
            reckoned = self._costs.target(step.sequences, step.sequences, step.context)
            compared.check.observe(step, self._costs.own(step), reckoned, drafted=compared.drafted)

    def forget(self, request: str) -> None:
        """The request has ended."""
        self._standing.forget(request)

    def _is_free(self, allowed: Allowed) -> bool:
        """Whether nothing holds the drafts of a step back, and there are no others'."""
        unbound = allowed.bound is None and bool(allowed.trees.all()) and not allowed.drafted
        return unbound and int(allowed.most.min()) >= self._settings.k_max

    def _verdict(self, check: Check, allowed: Allowed) -> Verdict:
        verdict = check.verdict(allowed.sequences)
        ruled_out = verdict is Verdict.REST or not allowed.most.any()
        self._ruled_out = self._ruled_out + 1 if ruled_out else 0
        return verdict

    def _levels(self, columns: Columns, allowed: Allowed, most: Ints) -> Ints:
        """[O, b] of each option."""
        levels = np.minimum(columns.k, np.minimum(most, self._settings.k_max))
        if columns.trees:
            of_trees = np.where(allowed.trees, np.minimum(levels, self._settings.tree_nodes), 0)
            levels = np.where(columns.width > 1, of_trees, levels)
        return levels

    def _of_prompts(self, allowed: Allowed) -> float:
        """Seconds that prompts add to the step, which they take in any case. Left out, a second has the price that it
        has in other steps; with them all drafts would look cheap beside a long prompt, and delay it and all who decode.
        """
        table = self._costs.table(allowed.rows)
        return float(table[allowed.rows] - table[allowed.sequences])

    def _prices(self, allowed: Allowed, of_prompts: float) -> Prices:
        costs = self._costs
        planned = max(
            self._settings.k_max * allowed.sequences, self._settings.tree_nodes
        )  # see policies.load.most_rows
        most = max(planned - allowed.drafted, 0)
        beside = costs.sequence * allowed.sequences + costs.key * allowed.context - of_prompts
        return Prices(costs.table(allowed.rows + most)[allowed.rows :] + beside, *self._of_drafts())

    def _of_drafts(self) -> Floats:
        """[4, proposers] what their drafts cost: see Prices."""
        names = self._reader.proposers
        if self._drafts is None or len(self._drafts[0]) != len(names):
            drafts = [self._costs.draft(name) for name in names] or [FREE]
            rows = [(each.fixed, each.level, each.node, each.owed) for each in drafts]
            self._drafts = names, np.array(rows).T
        return self._drafts[1]

    def _allocated(
        self, columns: Columns, rows: Ints, added: Floats, prices: Prices, bound: float | None
    ) -> Allocation:
        held, banned = self._standing.held(rows, columns.arm, self._steps)
        favoured = added
        if not (same := columns.arm == self._standing.arm[rows]).all():
            favoured = added / np.where(same, 1.0, FAVOUR)
            favoured[:, banned] = 0.0
        offers = Offers(
            favoured, columns.proposer, columns.width, columns.owed, held, self._settings.tree_nodes
        )
        found = self._market.allocate(offers, prices, bound)
        chosen = np.where(found.k > 0, columns.arm[found.place, np.arange(len(found.k))], OFF)
        could = added[0].any(axis=0)
        self._standing.give(rows, columns.arm, np.where(could, chosen, NO_ARM), self._steps)
        return found

    @staticmethod
    def _codes(columns: Columns, found: Allocation, levels: Ints, verdict: Verdict) -> Ints:
        """[b] index of each reason in _REASONS."""
        own = columns.own[0] if len(columns.own) == 1 else columns.own[found.place, np.arange(len(found.k))]
        codes = np.where(own, OWN, OF_CLASS)
        idle = np.flatnonzero(found.k == 0)
        if len(idle):
            # During a rest nobody is asked for a guess.
            settled = levels[:, idle].any(axis=0) | (verdict is Verdict.REST)
            codes[idle] = np.where(settled, _NONE_BY[verdict], NO_OFFER)
        return codes

    def _explored(
        self, batch: Batch, found: Allocation, settled: Choice, verdict: Verdict, bound: float | None
    ) -> Choice:
        """With what is to be tried in the place of what was found."""
        place, k, codes = (each.copy() for each in settled)
        exploring = self._exploring
        exploring.earn(found.seconds, float(batch.prices.step[0]))
        if verdict is not Verdict.LOOK and (
            not self._ruled_out or self._ruled_out % self._settings.probe_every == 0
        ):
            one, gained = bool(self._ruled_out), 1.0 / found.goodput
            left = _left(batch.prices, found, bound)
            for each in exploring.tries(batch, place, k, left, one=one, gained=gained, step=self._steps):
                place[each.request], k[each.request], codes[each.request] = each.place, each.k, PROBE
        exploring.drafted(batch, place, k, self._steps)
        return Choice(place, k, codes)

    def _held_back(self, decisions: list[Decision], k: Ints, allowed: Allowed) -> list[Decision]:
        """With the reason of those that would have more, but for load, tenant or room."""
        if int(allowed.most.min()) >= self._settings.k_max:
            return decisions
        bound = np.flatnonzero((k == allowed.most) & (allowed.most < self._settings.k_max))
        for i in bound.tolist():
            if decisions[i].reason not in _NOT_HELD:
                why = allowed.why(i)
                decisions[i] = decisions[i]._replace(reason=why.reason, text=why.text)
        return decisions


def _asked(requests: Fields, rows: int) -> Asked:
    return Asked(requests.options, requests.request, requests.traffic_class, rows)


def _left(prices: Prices, found: Allocation, bound: float | None) -> Left:
    """Beside what was found, in a step that may take so many seconds."""
    rows = len(prices.step) - 1 - found.rows
    return Left(rows) if bound is None else Left(rows, (bound - found.seconds) / float(prices.step[0]))


class _Compared(NamedTuple):
    """Where a step counts, as one with drafts or one without."""

    check: Check
    drafted: bool


_NONE_BY: Final = {Verdict.DRAFT: LOW, Verdict.REST: SLOWER, Verdict.LOOK: PLAIN}
_MEASURED: Final = frozenset({Reason.SLOWER, Reason.PLAIN})
_NOT_HELD: Final = frozenset({Reason.PROBE, Reason.SLOWER, Reason.PLAIN})
