"""What a proposer is, and what it hands to verification."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from engine.sequence import Sequence as Seq


class Draft(NamedTuple):
    """Guessed tokens for one request. Frozen: stages hand it on."""

    tokens: list[int]
    # [k, V] float32, the law q that each token was drawn from; None: q is one-hot
    probs: Tensor | None = None
    # who guessed, where it was not the engine's proposer
    proposer: str | None = None


NO_DRAFT = Draft([])


class Ask(NamedTuple):
    """A request for a draft of at most k tokens, k >= 1."""

    sequence: Seq
    k: int


class Proposer(Protocol):
    """Guesses what the target will say. One per engine; it keeps what it needs per sequence itself."""

    name: str
    cost: float
    """Cost of drafting one token, in units of a plain decode step: what a policy assumes unless told otherwise."""

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """One draft per ask, in order, of at most ask.k tokens; NO_DRAFT where there is nothing useful.

        May write KV beyond a sequence's committed positions (they are reserved for k tokens); verification
        overwrites it. A sequence may have been skipped for any number of steps since the last call: whatever
        the proposer derives from the text is caught up here, not before.
        """

    def forget(self, request: str) -> None:
        """The request has ended: drop its state. Unknown requests are ignored."""
