"""A policy that always drafts the same: to measure what a draft costs, or what it is worth by itself."""

from collections.abc import Sequence

from policies.base import (
    Decision,
    LoadState,
    LoadView,
    Observation,
    Option,
    Policy,
    Reason,
    RequestView,
    StepSeen,
)


class Fixed(Policy):
    """So many levels by one proposer, as a chain or as a tree of so many nodes, wherever it has a guess; fewer levels
    where it has no more.
    """

    def __init__(self, proposer: str, levels: int, nodes: int = 0) -> None:
        """nodes: of a tree, in all; 0 for a chain. levels = 0 drafts nothing."""
        self._proposer, self._levels, self._nodes = proposer, levels, nodes

    @property
    def load_state(self) -> LoadState:
        """Always FULL."""
        return LoadState.FULL

    def decide(self, load: LoadView, requests: Sequence[RequestView]) -> list[Decision]:  # noqa: ARG002
        """See policies.base.Policy."""
        return [self._decision(request) for request in requests]

    def observe(self, observations: Sequence[Observation], step: StepSeen) -> None:
        """Learn nothing."""

    def forget(self, request: str) -> None:
        """There is nothing to forget."""

    def _decision(self, request: RequestView) -> Decision:
        option = max(filter(self._fits, request.options), key=lambda option: option.k, default=None)
        levels = min(self._levels, request.remaining_tokens - 1, option.k if option else 0)
        if option is None or levels < 1:
            return Decision(0, Reason.NO_OFFER, "nothing to draft")
        return Decision(
            levels, Reason.STATIC, "fixed", option, max(self._nodes, levels) if self._nodes else 0
        )

    def _fits(self, option: Option) -> bool:
        return option.proposer == self._proposer and (option.width > 1) == (self._nodes > 0)
