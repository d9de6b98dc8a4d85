"""A proposer of trees and a policy that asks for them, for tests."""

from collections.abc import Sequence

import numpy as np

from engine.api import Output, Request
from engine.core import Engine
from engine.draft.base import Ask, Draft
from engine.draft.roster import Roster
from engine.draft.shape import MOST_NODES
from policies.base import Account, Decision, LoadView, Observation, Option, Reason, RequestView, StepSeen
from policies.controller import Controller
from policies.settings import PolicySettings
from tests.engine.conftest import generate
from tests.tiny import VOCABULARY


class Orchard:
    """Hides the true continuation, which it was told, among wrong branches; everything follows from the text."""

    name = "orchard"
    cost = 0.0

    def __init__(self, truth: dict[str, list[int]]) -> None:
        self._truth = truth
        self.shapes: set[tuple[int, ...]] = set()

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self._draft(ask) for ask in asks]

    def options(self, sequence: Sequence) -> tuple[Option, ...]:
        return (Option(self.name, MOST_NODES),)

    def forget(self, request: str) -> None:
        pass

    def _draft(self, ask: Ask) -> Draft:
        text = ask.sequence.text
        rng = np.random.default_rng([len(text), *map(ord, ask.sequence.id)])
        truth = iter(self._truth[ask.sequence.id][len(text) :])
        tokens: list[int] = []
        parents: list[int] = []
        trunk = -1  # where the true branch has come to
        for node in range(ask.k):
            true = rng.random() < 0.4
            token = next(truth, None) if true else None
            parents.append(trunk if true else int(rng.integers(-1, node)))
            tokens.append(int(rng.integers(3, VOCABULARY)) if token is None else token)
            trunk = node if true else trunk
        self.shapes.add(tuple(parents))
        return Draft(tokens, parents=parents)


class FixedShape(Controller):
    """Asks the first proposer for the same draft in every round: so many levels, so many nodes in all."""

    def __init__(self, levels: int, nodes: int) -> None:
        super().__init__(PolicySettings())
        self._levels = levels
        self._nodes = nodes

    def decide(self, load: LoadView, requests: Sequence[RequestView]) -> list[Decision]:
        return [self._shape(request) for request in requests]

    def observe(self, observations: Sequence[Observation], step: StepSeen) -> None:
        pass

    def account(self, place: int) -> Account:
        return Account("as the test wants it")

    def _shape(self, request: RequestView) -> Decision:
        option: Option | None = next(iter(request.options), None)
        if option is None or request.remaining_tokens == 1 or not request.speculate:
            return Decision(0, Reason.STATIC, "")
        levels = min(self._levels, option.k, request.remaining_tokens - 1)
        return Decision(levels, Reason.STATIC, "", option, max(self._nodes, levels))


def with_shape(engine: Engine, *, levels: int, nodes: int) -> Engine:
    engine._policy = FixedShape(levels, nodes)
    return engine


def with_proposer(engine: Engine, proposer: object) -> Engine:
    engine._roster = Roster([proposer])
    return engine


def with_trees(
    engine: Engine, plain: dict[str, Output], *requests: Request
) -> tuple[dict[str, Output], Orchard]:
    orchard = Orchard({name: output.tokens for name, output in plain.items()})
    return generate(with_proposer(engine, orchard), *requests), orchard
