"""Those who may draft in an engine, by name. Which of them does is the policy's choice."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.draft.base import Ask, Draft, Proposer, drafts_for
from engine.sequence import Sequence as Seq
from engine.stopwatch import Stopwatch
from policies.base import Drafting, Option
from policies.cost import DraftCost


class Order(NamedTuple):
    """An ask, and the option that is taken of those offered."""

    option: Option
    ask: Ask


class Drafted(NamedTuple):
    """What came of a step's orders."""

    drafts: list[Draft]
    """One for each order, in order, with its proposer's name."""
    drafting: tuple[Drafting, ...]
    """One for each proposer that had orders."""


class Roster:
    """Asks each proposer once in a step, for all the texts that are left to it."""

    def __init__(self, proposers: Iterable[Proposer]) -> None:
        self._proposers = {proposer.name: proposer for proposer in proposers}

    @property
    def proposers(self) -> tuple[Proposer, ...]:
        """In the order in which they were configured."""
        return tuple(self._proposers.values())

    def costs(self, plain: float) -> dict[str, DraftCost]:
        """What they say of themselves, by name, where a plain step costs so much."""
        return {name: DraftCost(each.cost * plain) for name, each in self._proposers.items()}

    def options(self, sequence: Seq) -> tuple[Option, ...]:
        """What there is to choose from for a text now."""
        return tuple(option for each in self._proposers.values() for option in each.options(sequence))

    def drafts(self, orders: Sequence[Order]) -> Drafted:
        """Drafts for all orders."""
        found: list[Draft | None] = [None] * len(orders)
        drafting = []
        watch = Stopwatch.start()
        for name in dict.fromkeys(order.option.proposer for order in orders):
            mine = [i for i, order in enumerate(orders) if order.option.proposer == name]
            asks = [orders[i].ask for i in mine]
            for i, draft in zip(mine, drafts_for(asks, self._proposers[name]), strict=True):
                found[i] = draft._replace(proposer=name)
            owed = sum(orders[i].option.owed for i in mine)
            drafting.append(_drafting(name, watch.lap(), asks, owed))
        return Drafted([draft for draft in found if draft is not None], tuple(drafting))

    def forget(self, text: str) -> None:
        """The text has ended."""
        for each in self._proposers.values():
            each.forget(text)


def _drafting(proposer: str, seconds: float, asks: Sequence[Ask], owed: int) -> Drafting:
    levels, tokens = max(ask.levels for ask in asks), sum(ask.k for ask in asks)
    return Drafting(proposer, seconds, len(asks), levels, tokens, owed)
