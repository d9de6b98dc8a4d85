"""A batch that decodes under a controller, with true acceptances and true costs: the loop closes."""

from dataclasses import dataclass, field

import numpy as np

from policies.base import Drafting, LoadView, Observation, Option, RequestView, StepSeen
from policies.controller import Controller
from policies.cost import DraftCost, StepCosts
from policies.settings import PolicySettings

STEP = 0.0065
HOST = StepCosts(
    tuple(
        (rows, STEP * cost)
        for rows, cost in zip((1, 2, 4, 8, 16, 32), (1, 1.08, 1.16, 1.37, 1.85, 2.61), strict=True)
    ),
    {"ngram": DraftCost(0.0005 * STEP), "eagle": DraftCost(0.034 * STEP, 0.02 * STEP)},
)
"""As measured on two cores, for the demo model."""

EAGLE = (Option("eagle", 8),)
TWO = (Option("ngram", 8), Option("eagle", 8))


@dataclass
class Loop:
    """rates(i, step) -> by proposer the acceptance of request i; all requests go on for ever."""

    requests: int
    rates: object
    costs: StepCosts = HOST
    believed: StepCosts = HOST
    settings: PolicySettings = field(default_factory=lambda: PolicySettings(kind="goodput"))
    options: object = lambda i, step, rng: EAGLE
    seed: int = 1
    noise: float = 0.0  # of a step's seconds
    name: object = lambda i, step: f"r{i}"
    asks: object = lambda i, step: None  # the k that the request names
    waiting: int = 0
    kv_free: float = 1.0

    def __post_init__(self):
        self.rng = np.random.default_rng(self.seed)
        self.controller = Controller(self.settings, self.believed)
        self.steps, self.seconds, self.tokens, self.reasons, self.chosen = 0, 0.0, 0, [], []

    def step(self):
        offered = [self.options(i, self.steps, self.rng) for i in range(self.requests)]
        if not self.controller.wants_options:
            offered = [options if self.asks(i, self.steps) else () for i, options in enumerate(offered)]
        views = [
            RequestView(
                self.name(i, self.steps),
                f"c{i % 2}",
                "t",
                10_000,
                100,
                True,
                self.asks(i, self.steps),
                0,
                options,
            )
            for i, options in enumerate(offered)
        ]
        decisions = self.controller.decide(
            LoadView(self.requests, self.waiting, self.kv_free, self.seconds, 300 * self.requests), views
        )
        seen, rows, committed, drafting = [], self.requests, self.requests, {}
        for i, (view, decision) in enumerate(zip(views, decisions, strict=True)):
            if decision.option is None:
                continue
            proposer, _, grade, width, owed = decision.option
            rate = self.rates(i, self.steps)[proposer]
            kept = 0
            while kept < decision.k and self.rng.random() < rate:
                kept += 1
            seen.append(
                Observation(
                    view.request,
                    view.traffic_class,
                    proposer,
                    decision.tokens,
                    min(kept + 1, decision.k),
                    kept,
                    grade,
                    width,
                )
            )
            rows, committed = rows + decision.tokens, committed + kept
            requests, levels, tokens, debt = drafting.get(proposer, (0, 0, 0, 0))
            drafting[proposer] = (
                requests + 1,
                max(levels, decision.k),
                tokens + decision.tokens,
                debt + owed,
            )
        drafts = tuple(
            Drafting(
                p,
                self.costs.draft(p).of(levels, tokens, owed),
                n,
                levels,
                tokens,
                owed,
            )
            for p, (n, levels, tokens, owed) in drafting.items()
        )
        seconds = (self.costs.step(rows) + sum(each.seconds for each in drafts)) * np.exp(
            self.noise * self.rng.standard_normal()
        )
        self.seconds += seconds
        self.tokens += committed
        self.steps += 1
        self.reasons.append([d.reason for d in decisions])
        self.chosen.append([(d.k, d.option) for d in decisions])
        self.controller.observe(
            seen,
            StepSeen(
                self.seconds, seconds, rows, 0, 0, self.requests, 100 * self.requests, committed, drafts
            ),
        )
        return decisions

    def speed(self, steps):
        """Tokens a second over so many steps."""
        seconds, tokens = self.seconds, self.tokens
        for _ in range(steps):
            self.step()
        return (self.tokens - tokens) / (self.seconds - seconds)


def best_static(requests, rates, costs=HOST, proposer="eagle", k_max=8):
    """(tokens a second, k) of the best single k for all; rates: one for each request."""
    rates = np.asarray(rates)
    found = []
    for k in range(k_max + 1):
        tokens = requests + sum((rates**j).sum() for j in range(1, k + 1))
        draft = costs.draft(proposer)
        drafting = draft.fixed + k * draft.level + requests * k * draft.node if k else 0.0
        found.append((tokens / (costs.step(requests * (1 + k)) + drafting), k))
    return max(found)
