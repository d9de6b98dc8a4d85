"""What serves the requests: its costs, and what of the scheduler decides who is in a step."""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.cost import DraftCost, StepCosts

# As engine.scheduler has them.
_ATTENTION_DOUBLES: Final = 1000
_LEAST_SHARE: Final = 0.25

_FACTORS: Final = 1 << 12


@dataclass(frozen=True, slots=True)
class Machine:
    """One engine on one host. Costs are in seconds.

    A prompt's rows cost what other rows of the forward cost. What they attend to is reckoned apart: the rows of a chunk
    read the same keys, those of different texts do not.
    """

    costs: StepCosts
    proposer: str  # whose drafts they are; its cost is `costs.draft(proposer)`
    prompt_key: float = 0.0  # for each token that a row of a prompt attends to
    max_running: int = 48
    max_batch_tokens: int = 256
    rows_beside_decodes: int = 32

    @property
    def most_rows(self) -> int:
        """Of a step without drafts."""
        return self.max_batch_tokens + self.max_running

    def padding(self, rows: int) -> int:
        """Rows that a step of so many is filled up with."""
        sizes = self.costs.sizes
        return sizes[bisect_left(sizes, rows)] - rows if sizes and rows <= sizes[-1] else 0

    def prompt_rows(self, decoding: int) -> "PromptRows":
        """What a step in which so many decode has for prompts."""
        limited = decoding > 0 and self.rows_beside_decodes > 0
        left = max(self.max_batch_tokens - decoding, 1)
        return PromptRows(min(left, self.rows_beside_decodes) if limited else left, limited=limited)


class PromptRows:
    """Rows of a step that are given to prompts in the order of arrival, as `engine.scheduler` does: beside others that
    decode, a row is dearer the more it attends to.
    """

    __slots__ = ("_left", "_limited", "attended", "rows")

    def __init__(self, left: float, *, limited: bool) -> None:
        self._left = float(left)
        self._limited = limited
        self.rows = 0  # given so far
        self.attended = 0  # tokens, summed over these rows

    def take(self, computed: int, missing: int) -> int:
        """The rows of a prompt of which so much is there and so much is not."""
        price = min(1 + computed / _ATTENTION_DOUBLES, 1 / _LEAST_SHARE) if self._limited else 1.0
        rows = min(missing, math.ceil(max(self._left, 0.0) / price))
        self._left -= rows * price
        self.rows += rows
        self.attended += rows * computed + rows * (rows + 1) // 2
        return rows


class Jitter:
    """By how much a step takes longer or shorter than it costs: the n-th step of every policy by the same factor."""

    def __init__(self, share: float, seed: int = 0) -> None:
        self._factors = 1 + np.random.default_rng(seed).uniform(-share, share, _FACTORS)

    def of(self, step: int) -> float:
        """The factor of a step."""
        return float(self._factors[step % _FACTORS])

    def of_each(self, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """The factors of steps."""
        found: NDArray[np.float64] = self._factors[steps % _FACTORS]
        return found


NO_JITTER: Final = Jitter(0.0)


def mistaken(costs: StepCosts, by: float, seed: int) -> StepCosts:
    """Costs of which each number is wrong, by up to so large a share; a step of more rows still takes no less."""
    rng = np.random.default_rng(seed)

    def wrong(cost: float) -> float:
        return cost * float(rng.uniform(1 - by, 1 + by))

    steps = StepCosts.measured([(rows, wrong(cost)) for rows, cost in costs.steps], {}).steps
    drafts = {
        name: DraftCost(wrong(cost.level), wrong(cost.fixed), wrong(cost.node), wrong(cost.owed))
        for name, cost in costs.drafts.items()
    }
    return replace(costs, steps=steps, drafts=drafts, key=wrong(costs.key), sequence=wrong(costs.sequence))
