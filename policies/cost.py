"""What a step costs, in seconds, or in any other unit that is the same for all of it.

rows    the target's forward by its number of rows: its weights are read once, so that a few rows more cost little
text    what a text that decodes adds, beside its rows: `sequence`
key     what a token that is attended to adds, beside its row
draft   what a proposer adds: once a step in which it drafts, for each level, for each token, and for each token of a
        text that it has to catch up on

Where `n` requests decode together, a request is charged as if all of them did as it does: a step that verifies
`n (1 + tokens)` rows, against one of `n`. So a row is dear where the step has many already, and a level of a draft is
cheap, since all of them share it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from policies.base import Drafting, StepSeen

_ROW: Final = 0.02  # of a plain step: what a row costs on a host that nobody has measured


@dataclass(frozen=True, slots=True)
class DraftCost:
    """What a proposer's draft adds to a step."""

    level: float  # for each level: one pass of all that draft with it
    fixed: float = 0.0  # for each step in which it drafts
    node: float = 0.0  # for each token, beside what its level costs
    owed: float = 0.0  # for each token that it must read before it can guess

    def of(self, levels: int, tokens: int, owed: int = 0) -> float:
        """Of all its drafts in a step, the deepest of so many levels; nothing where there are none."""
        if not levels:
            return 0.0
        return self.fixed + levels * self.level + tokens * self.node + owed * self.owed

    def times(self, factor: float) -> "DraftCost":
        """On a machine that is so many times as slow."""
        return DraftCost(self.level * factor, self.fixed * factor, self.node * factor, self.owed * factor)


FREE: Final = DraftCost(0.0)


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The costs of one engine on one host."""

    steps: tuple[tuple[int, float], ...] = ((1, 1.0), (2, 1.0 + _ROW))
    """(rows, cost of a step of so many), both ascending, rows from 1 on; straight lines between them and beyond."""
    drafts: Mapping[str, DraftCost] = field(default_factory=dict)
    """By proposer."""
    other: DraftCost = FREE
    """Of those that are not there."""
    key: float = 0.0
    """For each token that is attended to."""
    sequence: float = 0.0
    """For each text that decodes, however many rows it has."""
    sizes: tuple[int, ...] = ()
    """Ascending: a step is filled up to the next of these rows, and costs what that costs; a larger one is as it is."""
    untimed: tuple[str, ...] = ()
    """Proposers whose drafting nobody times apart from the step; `Drafting.seconds` is 0 for them."""

    @classmethod
    def measured(cls, seconds: Iterable[tuple[int, float]], drafts: Mapping[str, DraftCost]) -> "StepCosts":
        """From (rows, seconds of a step), rows ascending from 1, and drafts in seconds. A smaller step is never taken
        to cost more than a larger one was seen to take: where it was measured so, something else took the machine's
        time. The other way round, one such moment would make all larger steps dear.
        """
        falling: list[tuple[int, float]] = []
        for rows, took in reversed([*seconds]):
            falling.append((rows, min(took, falling[-1][1] if falling else took)))
        return cls(tuple(reversed(falling)), drafts)

    @property
    def plain(self) -> float:
        """Of a step of one row: the unit that people think in."""
        return self.steps[0][1]

    def with_row(self, cost: float) -> "StepCosts":
        """These, with a fixed cost for each row more, in plain steps."""
        return replace(self, steps=((1, self.plain), (2, self.plain * (1.0 + cost))))

    def with_level(self, cost: float) -> "StepCosts":
        """These, with a fixed cost for each level of every proposer's drafts, in plain steps."""
        return replace(self, drafts={}, other=DraftCost(cost * self.plain))

    def draft(self, proposer: str) -> DraftCost:
        """What a proposer's drafts add."""
        return self.drafts.get(proposer, self.other)

    def with_drafts(self, drafts: Mapping[str, DraftCost]) -> "StepCosts":
        """These, with other costs of the drafts of some."""
        return replace(self, drafts={**self.drafts, **drafts})

    def with_steps(self, steps: tuple[tuple[int, float], ...], *, sequence: float, key: float) -> "StepCosts":
        """These, with other costs of the target's part."""
        return replace(self, steps=steps, sequence=sequence, key=key)

    def table(self, most: int) -> NDArray[np.float64]:
        """[most + 1]: of a step of 0, 1, ... rows without drafting, keys and sequences left out. Never falls.

        Not to be written to: whoever asks gets the same.
        """
        return _table(self.steps, self.sizes, 1 << most.bit_length())[: most + 1]

    def step(self, rows: int) -> float:
        """Of a step of so many rows without drafting."""
        return float(self.table(rows)[rows])

    def of(self, step: StepSeen) -> float:
        """Of a whole step as it was, as if rows of prompts were like others."""
        return self.target(step.rows, step.sequences, step.context) + self.drafting(step.drafting)

    def drafting(self, drafts: Iterable[Drafting]) -> float:
        """Of what proposers did in a step."""
        return sum(self.draft(each.proposer).of(each.levels, each.tokens, each.owed) for each in drafts)

    def own(self, step: StepSeen) -> float:
        """What a step took, with the drafts that it verified in the place of those that it made for the next one: what
        drafting is worth shows in steps that pay for their own. At least half of it, should the costs be far off.
        """
        if step.before is None:
            return step.seconds
        moved = self.drafting(step.before) - self.drafting(step.drafting)
        return max(step.seconds + moved, 0.5 * step.seconds)

    def target(self, rows: int, sequences: int, context: int) -> float:
        """Of the target's part of a step. context: tokens attended to, all texts together."""
        return self.step(rows) + sequences * self.sequence + context * self.key

    def round(self, proposer: str, levels: int, tokens: int, requests: int = 1) -> float:
        """Of a round with such a draft, in rounds without one, where `requests` decode and all do the same."""
        drafting = self.draft(proposer).of(levels, requests * tokens)
        return (self.step(requests * (1 + tokens)) + drafting) / self.step(requests)


@lru_cache(maxsize=64)
def _table(steps: tuple[tuple[int, float], ...], sizes: tuple[int, ...], most: int) -> NDArray[np.float64]:
    """See StepCosts.table."""
    first = steps[0][1]
    rows, costs = np.array([(1, first), *steps]).T
    slope = (costs[-1] - costs[-2]) / max(rows[-1] - rows[-2], 1.0)
    wanted = np.arange(most + 1)
    if sizes:
        wanted = np.where(wanted <= sizes[-1], np.append(sizes, 0)[np.searchsorted(sizes, wanted)], wanted)
    found: NDArray[np.float64] = np.interp(wanted, rows, costs) + slope * np.maximum(wanted - rows[-1], 0.0)
    found.setflags(write=False)
    return found
