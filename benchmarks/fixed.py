"""A policy that always drafts the same, so that what a draft is worth can be seen by itself."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from engine.core import Engine
from policies.base import Decision, LoadState, LoadView, Observation, Reason, RequestView, StepSeen


class Fixed:
    """So many levels by one proposer, as a chain or as a tree of so many nodes, wherever it has a guess."""

    load_state = LoadState.FULL

    def __init__(self, proposer: str, levels: int, *, nodes: int = 0) -> None:
        self._proposer, self._levels, self._nodes = proposer, levels, nodes

    def decide(self, load: LoadView, requests: Sequence[RequestView]) -> list[Decision]:
        """See policies.base.Policy."""
        del load
        return [self._decision(request) for request in requests]

    def observe(self, observations: Sequence[Observation], step: StepSeen) -> None:
        """Learn nothing."""

    def forget(self, request: str) -> None:
        """There is nothing to forget."""

    def _decision(self, request: RequestView) -> Decision:
        wide = self._nodes > 0
        mine = [o for o in request.options if o.proposer == self._proposer and (o.width > 1) is wide]
        room = request.remaining_tokens - 1
        if not mine or room < 1:
            return Decision(0, Reason.NO_OFFER, "nothing to draft")
        levels = min(self._levels, mine[0].k, room)
        return Decision(levels, Reason.STATIC, "fixed", mine[0], max(self._nodes, levels) if wide else 0)


@contextmanager
def fixed(engine: Engine, policy: Fixed) -> Iterator[None]:
    """While open, the engine decides by this policy."""
    own = engine.policy
    engine.policy = policy  # type: ignore[assignment]
    try:
        yield
    finally:
        engine.policy = own
