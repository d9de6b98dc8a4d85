"""What a round costs, in plain decode steps: the forward of one row and all that goes with it.

rows    the target's forward by its number of rows: its weights are read once, so that a few rows more cost little
draft   what a proposer adds: once a round, for each level, and for each token

Where `n` requests decode together, a request is charged as if all of them did as it does: a step that verifies
`n (1 + tokens)` rows, against one of `n`. So a row is dear where the step has many already, and a level of a draft is
cheap, since all of them share it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

_ROW: Final = 0.02  # of a plain step: what a row costs on a host that nobody has measured


@dataclass(frozen=True, slots=True)
class DraftCost:
    """What a proposer's draft adds to a step."""

    level: float  # for each level: one pass of all that draft with it
    fixed: float = 0.0  # for each round in which it drafts
    node: float = 0.0  # for each token, beside what its level costs


FREE: Final = DraftCost(0.0)


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The costs of one engine on one host."""

    steps: tuple[tuple[int, float], ...] = ((1, 1.0), (2, 1.0 + _ROW))
    """(rows, cost of a step of so many), both ascending, from (1, 1.0) on; straight lines between them and beyond."""
    drafts: Mapping[str, DraftCost] = field(default_factory=dict)
    """By proposer."""
    other: DraftCost = FREE
    """Of those that are not there."""

    @classmethod
    def measured(cls, seconds: Iterable[tuple[int, float]], drafts: Mapping[str, DraftCost]) -> "StepCosts":
        """From (rows, seconds of a step), rows ascending from 1. A step of more rows is never taken to be cheaper:
        where it was measured so, the clock was wrong.
        """
        ascending: list[tuple[int, float]] = []
        for rows, took in seconds:
            ascending.append((rows, max(took, ascending[-1][1] if ascending else took)))
        plain = ascending[0][1]
        return cls(tuple((rows, took / plain) for rows, took in ascending), drafts)

    def with_row(self, cost: float) -> "StepCosts":
        """These, with a fixed cost for each row more."""
        return replace(self, steps=((1, 1.0), (2, 1.0 + cost)))

    def with_level(self, cost: float) -> "StepCosts":
        """These, with a fixed cost for each level of every proposer's drafts."""
        return replace(self, drafts={}, other=DraftCost(cost))

    def step(self, rows: int) -> float:
        """Of a step of so many rows without drafting."""
        for (left, low), (right, high) in pairwise(self.steps):
            if rows <= right or right == self.steps[-1][0]:
                return low + (high - low) * (rows - left) / (right - left)
        return self.steps[0][1]

    def round(self, proposer: str, levels: int, tokens: int, requests: int = 1) -> float:
        """Of a round with such a draft, in rounds without one, where `requests` decode and all do the same."""
        draft = self.drafts.get(proposer, self.other)
        drafting = draft.fixed + levels * draft.level + requests * tokens * draft.node if levels else 0.0
        return (self.step(requests * (1 + tokens)) + drafting) / self.step(requests)
