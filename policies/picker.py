"""Who drafts, and how far: of all that is offered for a request, what brings most tokens for its time.

gain    tokens of a round over its cost, in those of a plain one: k = 0 has 1
arm     see `policies.acceptance`; a request is offered one or more of them, each up to some k

So n-grams draft where they have a good match and a head does where they have nothing, without a rule that says so.
"""

from collections.abc import Sequence
from typing import Final

from policies.acceptance import AcceptanceEstimates, Rates
from policies.account import TOLD, brings
from policies.base import Account, Decision, Option, RequestView
from policies.cost import StepCosts
from policies.plan import Gain, gain
from policies.settings import PolicySettings

LOYALTY: Final = 1.03
"""Another proposer must bring so many times as much as the one that drafted last, lest estimates that cross and cross
again have a request change between two."""

_MOST_LOADS: Final = 64  # numbers of requests whose gains are kept
_MOST_GAINS: Final = 1 << 11  # of each kind of draft at each of these


_Kind = tuple[str, int]  # proposer and width: what a draft costs depends on these


Pick = tuple[float, int, int, Option, float, Rates]
"""An option as it stands for one request: (rank, of which the least is best; k; place among those offered, which has
the last word; option; gain; rates)."""


class Picker:
    """Ranks options. What they bring depends on how many decode together, so each step begins with `start`."""

    def __init__(self, estimates: AcceptanceEstimates, costs: StepCosts, settings: PolicySettings) -> None:
        self._estimates = estimates
        self._last: dict[str, str] = {}  # by request: who drafted last
        self.configure(costs, settings)

    def configure(self, costs: StepCosts, settings: PolicySettings) -> None:
        """Reckon with other costs and bounds; who drafted last is kept."""
        self._costs, self._k_max, self._tree_nodes = costs, settings.k_max, settings.tree_nodes
        self._by_load: dict[int, dict[_Kind, _Drafts]] = {}
        self.start(1, trees=True)

    def start(self, requests: int, *, trees: bool) -> None:
        """A step begins in which so many decode; `trees`: whether drafts may be wider than a chain."""
        if len(self._by_load) > _MOST_LOADS:
            self._by_load.clear()
        self._requests = requests
        self._drafts = self._by_load.setdefault(requests, {})
        self._trees = trees and self._tree_nodes > 0

    def best(self, request: RequestView, most: int) -> list[Pick]:
        """Each option at its best k, which is at most `most`; those that bring most first."""
        last, picks = self._last.get(request.request), []
        for place, option in enumerate(self.allowed(request)):
            rates, gain = self._of(request, option)
            k = gain.best[min(option.k, most)]
            brings = gain.of[k]
            rank = brings * -LOYALTY if k and option.proposer == last else -brings
            picks.append((rank, k, place, option, brings, rates))
        picks.sort()
        return picks

    def at(self, request: RequestView, k: int) -> list[Pick]:
        """Each chain at this k, or at the most that it has; those that bring most first.

        Who names a k means tokens that follow one another: no tree.
        """
        picks = []
        for place, option in enumerate(option for option in request.options if option.width == 1):
            rates, gain = self._of(request, option)
            reached = min(k, option.k, len(gain.of) - 1)
            picks.append((-gain.of[reached], reached, place, option, gain.of[reached], rates))
        picks.sort()
        return picks

    def best_k(self, request: RequestView, option: Option) -> int:
        """The best k of one option; 0 where it costs more than it brings."""
        return self._of(request, option)[1].best[min(self._k_max, option.k)]

    def account(self, request: RequestView, decision: Decision) -> Account:
        """What is expected of a decision where all do as it does, in tokens a second, and of the two best others."""
        option, most = decision.option, min(self._k_max, request.remaining_tokens - 1)
        gains = {("none", 0): 1.0}
        for _, k, _, other, worth, _ in reversed(self.best(request, most)):
            if k:
                gains[other.proposer, k] = worth
        own = 1.0 if option is None else self._of(request, option)[1].of[decision.k]
        gains.pop(("none", 0) if option is None else (option.proposer, decision.k), None)
        plain = self._requests / self._costs.target(self._requests, self._requests, 0)
        best = sorted(gains.items(), key=lambda each: -each[1])[:TOLD]
        others = tuple((name, k, gain * plain) for (name, k), gain in best)
        text = f"{decision.text}, {brings(decision.k, own * plain, others)}"
        return Account(text, own * plain, others)

    def allowed(self, request: RequestView) -> Sequence[Option]:
        """What is offered and may be chosen in this step."""
        if self._trees:
            return request.options
        return [option for option in request.options if option.width == 1]

    def most(self, option: Option) -> int:
        """Levels that it may have: a tree has no more of them than nodes."""
        return option.k if option.width == 1 else min(option.k, self._tree_nodes)

    def nodes(self, option: Option, k: int) -> int:
        """Tokens of a tree of k levels; 0 for a chain, whose levels say it."""
        return option.nodes(k, self._tree_nodes)

    def drafted(self, request: str, option: Option) -> None:
        """The request was left to this option."""
        self._last[request] = option.proposer

    def forget(self, request: str) -> None:
        """The request has ended."""
        self._last.pop(request, None)

    def _of(self, request: RequestView, option: Option) -> tuple[Rates, Gain]:
        """What to expect of an option for a request, and what it brings then."""
        proposer, _, grade, width, _ = option
        rates = self._estimates.rates(request.request, request.traffic_class, (proposer, grade, width))
        drafts = self._drafts.get((proposer, width)) or self._cost(option)
        return rates, drafts.gains.get(rates) or drafts.gain(rates)

    def _cost(self, option: Option) -> "_Drafts":
        levels = self._k_max if option.width == 1 else min(self._k_max, self._tree_nodes)
        tokens = [self.nodes(option, k) or k for k in range(levels + 1)]
        costs = [self._costs.round(option.proposer, k, n, self._requests) for k, n in enumerate(tokens)]
        return self._drafts.setdefault((option.proposer, option.width), _Drafts(costs, self._k_max))


class _Drafts:
    """Drafts of one proposer and width: what they cost, and what they bring at each acceptance, worked out once."""

    __slots__ = ("costs", "gains", "k_max")

    def __init__(self, costs: list[float], k_max: int) -> None:
        self.costs = costs
        self.k_max = k_max
        self.gains: dict[Rates, Gain] = {}

    def gain(self, rates: Rates) -> Gain:
        if len(self.gains) >= _MOST_GAINS:
            self.gains.clear()
        found = gain(rates.first / 100, rates.later / 100, self.costs)
        beyond = (found.best[-1],) * (self.k_max + 1 - len(found.best))  # levels that a tree has no nodes for
        return self.gains.setdefault(rates, found._replace(best=found.best + beyond))
