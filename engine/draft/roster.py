"""Those who may draft in an engine, by name. Which of them does is the policy's choice."""

from collections.abc import Sequence
from typing import NamedTuple

from engine.draft.base import Ask, Draft, Proposer, drafts_for
from engine.sequence import Sequence as Seq
from policies.base import Option
from policies.cost import DraftCost


class Order(NamedTuple):
    """An ask, and by whom it is to be answered."""

    proposer: str
    ask: Ask


class Roster:
    """Asks each proposer once in a step, for all the texts that are left to it."""

    def __init__(self, proposers: Sequence[Proposer]) -> None:
        self._proposers = {proposer.name: proposer for proposer in proposers}

    @property
    def proposers(self) -> tuple[Proposer, ...]:
        """In the order in which they were configured."""
        return tuple(self._proposers.values())

    def costs(self) -> dict[str, DraftCost]:
        """What they say of themselves, by name."""
        return {name: DraftCost(each.cost) for name, each in self._proposers.items()}

    def options(self, sequence: Seq) -> tuple[Option, ...]:
        """What there is to choose from for a text now."""
        return tuple(option for each in self._proposers.values() for option in each.options(sequence))

    def drafts(self, orders: Sequence[Order]) -> list[Draft]:
        """One for each order, in order, with its proposer's name."""
        found: list[Draft | None] = [None] * len(orders)
        for name in dict.fromkeys(order.proposer for order in orders):
            mine = [i for i, order in enumerate(orders) if order.proposer == name]
            answers = drafts_for([orders[i].ask for i in mine], self._proposers[name])
            for i, draft in zip(mine, answers, strict=True):
                found[i] = draft._replace(proposer=name)
        return [draft for draft in found if draft is not None]

    def forget(self, text: str) -> None:
        """The text has ended."""
        for each in self._proposers.values():
            each.forget(text)
