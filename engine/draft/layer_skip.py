"""Self-speculation: the target with some of its layers left out drafts for the whole of it.

Source: Zhang et al., "Draft & verify: lossless large language model acceleration via self-speculative decoding",
ACL 2024. The draft reads the target's own keys and values of the committed positions and writes those of its guesses
into the positions reserved for them, where verification overwrites them. So it needs no cache of its own, and nothing
goes stale while drafting is off.
"""

from collections.abc import Sequence

from torch import Tensor

from engine.batch import Span
from engine.draft.base import Ask, Draft
from engine.draft.chains import draw_chains
from engine.draft.shape import MOST_NODES
from engine.model.loader import LoadedModel
from engine.model.runner import Runner
from engine.sequence import Sequence as Seq
from policies.base import Option


def default_skip(layers: int) -> tuple[int, ...]:
    """Every second layer of the middle half: the first layers build the features, the last ones choose the words."""
    quarter = layers // 4
    return tuple(range(quarter, layers - quarter, 2))


class LayerSkipProposer:
    """Drafts token by token, all asking sequences at once."""

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
        """See Proposer. Each pass drafts one more token for every sequence that wants one."""
        return draw_chains(asks, lambda which, drafted: self._forward([asks[i] for i in which], drafted))

    def forget(self, request: str) -> None:
        """See Proposer. There is no state to drop."""

    def _forward(self, asks: Sequence[Ask], drafted: Sequence[list[int]]) -> Tensor:
        """Logits after the last token of each sequence, drafted ones included: [B, V]."""
        spans = []
        for ask, guesses in zip(asks, drafted, strict=True):
            sequence = ask.sequence
            last = guesses[-1] if guesses else sequence.tokens[-1]
            spans.append(Span(sequence.table, len(sequence.tokens) - 1 + len(guesses), [last], 1))
        return self._runner.run(self._draft, self._runner.pack(spans))


_OPTIONS = (Option(LayerSkipProposer.name, MOST_NODES),)
