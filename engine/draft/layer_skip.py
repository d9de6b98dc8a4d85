"""Self-speculation: the target with some of its layers left out drafts for the whole of it.

Source: Zhang et al., "Draft & verify: lossless large language model acceleration via self-speculative decoding",
ACL 2024. The draft reads the target's own keys and values of the committed positions and writes those of its guesses
into the positions reserved for them, where verification overwrites them. So it needs no cache of its own, and nothing
goes stale while drafting is off.
"""

from collections.abc import Sequence
from typing import Final

from torch import Tensor

from engine.batch import Span
from engine.draft.base import Ask, Draft
from engine.draft.chains import draw_chains
from engine.draft.shape import MOST_NODES
from engine.draft.tree import Grown, Likeliest, by_shape, grow_trees, likeliest, tree_span
from engine.model.loader import LoadedModel
from engine.model.runner import Runner
from engine.sequence import Sequence as Seq
from policies.base import Option


def default_skip(layers: int) -> tuple[int, ...]:
    """Every second layer of the middle half: the first layers build the features, the last ones choose the words."""
    quarter = layers // 4
    return tuple(range(quarter, layers - quarter, 2))


class LayerSkipProposer:
    """Drafts level by level, all asking sequences at once."""

    name = "layer-skip"

    def __init__(self, target: LoadedModel, runner: Runner, skip: tuple[int, ...]) -> None:
        self._runner = runner
        self._draft = target.forward.without_layers(skip)
        self.cost = 1 - len(set(skip)) / len(
            target.shapes
        )  # a pass is a plain step of the layers that are left

    def options(self, sequence: Seq) -> tuple[Option, ...]:  # noqa: ARG002
        """See Proposer. It can always go on."""
        return _OPTIONS

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """See Proposer. Each pass drafts one more level for every sequence that wants one."""
        return by_shape(
            asks,
            lambda mine: self._chains([asks[i] for i in mine]),
            lambda mine: self._trees([asks[i] for i in mine]),
        )

    def forget(self, request: str) -> None:
        """See Proposer. There is no state to drop."""

    def _chains(self, asks: Sequence[Ask]) -> list[Draft]:
        def logits_of(which: Sequence[int], drafted: Sequence[list[int]]) -> Tensor:
            return self._forward(
                [_last(asks[i].sequence, own) for i, own in zip(which, drafted, strict=True)]
            )

        return draw_chains(asks, logits_of)

    def _trees(self, asks: Sequence[Ask]) -> list[Draft]:
        def likeliest_of(which: Sequence[int], trees: Sequence[Grown], most: int) -> Likeliest:
            active = [asks[i] for i in which]
            logits = self._forward(
                [tree_span(ask.sequence, tree) for ask, tree in zip(active, trees, strict=True)]
            )
            return likeliest(active, trees, logits, most)

        return grow_trees(asks, likeliest_of)

    def _forward(self, spans: Sequence[Span]) -> Tensor:
        """Logits of the rows that the spans want: [R, V]."""
        return self._runner.run(self._draft, self._runner.pack(spans))


def _last(sequence: Seq, drafted: Sequence[int]) -> Span:
    """The row of a text's last token, drafted ones included: the keys of those before it are there."""
    token = drafted[-1] if drafted else sequence.tokens[-1]
    return Span(sequence.table, len(sequence.tokens) - 1 + len(drafted), [token], 1)


_OPTIONS: Final = tuple(Option(LayerSkipProposer.name, MOST_NODES, width=width) for width in (1, 2, 4))
