"""A machine whose costs are known, which takes steps."""

from dataclasses import replace

import numpy as np

from policies.base import Drafting, StepSeen
from policies.cost import DraftCost, StepCosts

TRUTH = StepCosts(
    steps=((1, 6.0e-3), (4, 6.8e-3), (8, 8.1e-3), (16, 10.5e-3), (32, 15.3e-3), (80, 30e-3), (512, 150e-3)),
    drafts={"eagle": DraftCost(level=7e-4, fixed=3e-4, node=2e-5, owed=1e-5)},
    key=5e-7,
    sequence=4e-5,
)


class Machine:
    """Noise is lognormal, of the target's part and of the draft's apart."""

    def __init__(self, truth: StepCosts = TRUTH, *, noise: float = 0.05, seed: int = 0) -> None:
        self.truth = truth
        self.rng = np.random.default_rng(seed)
        self._noise = noise
        self.slower = 1.0

    def step(self, texts: int, k: int, *, context: int = 300, owed: int = 0, prompt: int = 0) -> StepSeen:
        """Of so many texts with drafts of k tokens each, over so much context each."""
        rows = texts * (1 + k) + prompt
        padded = next((size for size in self.truth.sizes if size >= rows), rows)
        drafting = (Drafting("eagle", 0.0, texts, k, texts * k, owed),) if k else ()
        quiet = StepSeen(0.0, 1.0, padded, prompt, padded - rows, texts, context * texts, texts, drafting)
        target = self._took(self.truth.of(replace(quiet, drafting=())))
        if not drafting:
            return replace(quiet, seconds=target)
        draft = self._took(self.truth.of(quiet) - self.truth.of(replace(quiet, drafting=())))
        return replace(quiet, seconds=target + draft, drafting=(replace(drafting[0], seconds=draft),))

    def any_step(self, most_texts: int = 32) -> StepSeen:
        """Whatever traffic brings."""
        texts, k = int(self.rng.integers(1, most_texts + 1)), int(self.rng.integers(0, 9))
        owed = int(self.rng.integers(0, 64)) if self.rng.random() < 0.2 else 0
        return self.step(texts, k, context=int(self.rng.integers(50, 2000)), owed=owed)

    def _took(self, quiet: float) -> float:
        return quiet * self.slower * float(np.exp(self.rng.normal(0.0, self._noise)))


def mistaken(truth: StepCosts, by: float, seed: int) -> StepCosts:
    """Each cost off by up to so much, either way, and nothing known of texts, nodes and what is owed."""
    rng = np.random.default_rng(seed)

    def wrong(cost: float) -> float:
        return cost * (1.0 + float(rng.uniform(-by, by)))

    drafts = {
        name: DraftCost(wrong(each.level), fixed=wrong(each.fixed)) for name, each in truth.drafts.items()
    }
    steps = StepCosts.measured([(rows, wrong(cost)) for rows, cost in truth.steps], drafts)
    return replace(steps, key=wrong(truth.key), sizes=truth.sizes)
