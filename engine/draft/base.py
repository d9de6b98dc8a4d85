"""What a proposer is, and what it hands to verification."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from engine.draft.shape import ROOT, chain, misshapen, path
from engine.sequence import Sequence as Seq
from policies.base import Option


class Draft(NamedTuple):
    """Guessed tokens for one request: a chain, or a tree of alternatives. Frozen: stages hand it on."""

    tokens: list[int]
    # [k, V] float32, the law q that each token was drawn from, given its path and its elder siblings: for siblings
    # drawn without replacement, the elder ones have no mass left in it. None: q is one-hot.
    probs: Tensor | None = None
    # who guessed, where it was not the engine's proposer
    proposer: str | None = None
    # by node, see engine.draft.shape; siblings in the order in which they were drawn. None: a chain
    parents: list[int] | None = None

    @classmethod
    def certain(cls, tokens: list[int], parents: list[int]) -> "Draft":
        """Of such a shape: a chain, where each node hangs at the one before it."""
        return cls(tokens, parents=None if parents == list(chain(len(tokens))) else parents)

    @property
    def shape(self) -> Sequence[int]:
        """Parents, of a chain too."""
        return chain(len(self.tokens)) if self.parents is None else self.parents

    def way(self, row: int) -> list[int]:
        """The drafted tokens from the committed text down to a row of the verify."""
        if self.parents is None:
            return self.tokens[:row]
        return [self.tokens[node] for node in path(self.parents, row - 1)]

    def ways(self) -> list[list[int]]:
        """The same for each row of the verify, the root's first."""
        return [self.way(row) for row in range(len(self.tokens) + 1)]

    def only(self, nodes: Sequence[int]) -> "Draft":
        """The draft of these nodes alone, in their order; the parent of each must be among them."""
        places = {ROOT: ROOT, **{node: place for place, node in enumerate(nodes)}}
        return self._replace(
            tokens=[self.tokens[node] for node in nodes],
            probs=None if self.probs is None else self.probs[list(nodes)],
            parents=None if self.parents is None else [places[self.parents[node]] for node in nodes],
        )

    def misfit(self, k: int) -> str | None:
        """Why this is no answer to an ask for k tokens, if so."""
        if len(self.tokens) > k:
            return f"{len(self.tokens)} tokens were drafted where room was reserved for {k}"
        if self.probs is not None and len(self.probs) != len(self.tokens):
            return f"{len(self.tokens)} tokens were drafted with {len(self.probs)} laws: each needs its own"
        if self.parents is None:
            return None
        if len(self.parents) != len(self.tokens):
            return (
                f"{len(self.tokens)} tokens were drafted with {len(self.parents)} parents: each needs its own"
            )
        return misshapen(self.parents)


NO_DRAFT = Draft([])


class Ask(NamedTuple):
    """A request for a draft of at most k tokens on at most so many levels, k >= levels >= 1; equal for a chain."""

    sequence: Seq
    k: int
    levels: int


class Proposer(Protocol):
    """Guesses what the target will say. One of a kind per engine; it keeps what it needs per sequence itself."""

    name: str
    cost: float
    """Cost of drafting one level, in units of a plain decode step: what a policy assumes unless told otherwise."""

    def options(self, sequence: Seq) -> tuple[Option, ...]:
        """What it could do for a text now; none where it has no guess. Asked for every text in every step: cheap."""

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """One draft per ask, in order, of at most ask.k tokens; NO_DRAFT where there is nothing useful.

        ask.k counts the tokens of a tree, not its levels: each costs a row. A draft with laws must not be shortened
        by looking at the tokens that were drawn: what was drawn and then dropped would bias the text. Its random
        numbers are keyed by the round (the position of its first token), as no later round may see them again.

        May write KV beyond a sequence's committed positions (they are reserved for k tokens); verification
        overwrites it. A sequence may have been skipped for any number of steps since the last call: whatever
        the proposer derives from the text is caught up here, not before.
        """

    def forget(self, request: str) -> None:
        """The request has ended: drop its state. Unknown requests are ignored."""


class Keeper(Proposer, Protocol):
    """A proposer that may keep keys and values of its own in the target's blocks."""

    def distrust(self, blocks: Sequence[int]) -> None:
        """A text ended in values that are no numbers, and these blocks were its alone: clear what is kept in them."""


def drafts_for(asks: Sequence[Ask], proposer: Proposer) -> list[Draft]:
    """What a proposer answers. Asserts that each draft can be verified as it is."""
    drafts = proposer.propose(asks)
    for ask, draft in zip(asks, drafts, strict=True):
        misfit = draft.misfit(ask.k)
        assert misfit is None, f"{proposer.name}: {misfit}"
    return drafts
