"""Medusa: heads on the target's last hidden state guess several tokens ahead, each without knowing the others'.

All levels are known at once, so the best nodes of a tree are found without a pass for each level: a node is worth the
product of what the heads give the tokens on its way. All that is kept is the hidden state of the last position that the
target computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torch import Tensor

from engine.api import DraftSettings
from engine.draft.base import Ask, Draft
from engine.draft.chains import allowed, draw_chains
from engine.draft.features import Reads
from engine.draft.tree import Grown, Likeliest, by_shape, grow_trees, of_logits
from engine.heads.medusa import Fit, MedusaHeads, read_medusa
from engine.heads.tensors import HeadError
from engine.kv.memory import KVMemory
from engine.model.loader import LoadedModel
from engine.model.runner import Runner
from engine.sampling.rows import Row, edit
from engine.sequence import Sequence as Seq
from engine.transfer import send
from policies.base import Option

NAME: Final = "medusa"
_WIDTHS: Final = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class MedusaPart:
    """See engine.draft.registry.Part."""

    heads: MedusaHeads
    reads: Reads
    cost: float  # of a level, in plain steps
    bytes_per_position: int = 0

    @property
    def rows_at_once(self) -> int:
        """All heads speak at once."""
        return self.heads.count

    @property
    def weight_bytes(self) -> int:
        """Of the heads, what they share with the target aside."""
        return self.heads.weight_bytes

    def proposer(self, memory: KVMemory, runner: Runner) -> "MedusaProposer":
        """See Part."""
        del runner  # the heads attend to nothing
        return MedusaProposer(self.heads, memory.features[NAME], self.cost)


def load_part(settings: DraftSettings, target: LoadedModel, say: Callable[[str], None]) -> MedusaPart:
    """The heads that the settings name. Raises HeadError."""
    if not settings.head_path:
        raise HeadError(
            'a draft of kind "medusa" needs heads that were trained for the target: name their directory'
        )
    ends = target.forward.ends
    hidden = ends.embedding.shape[1]
    files = read_medusa(Path(settings.head_path), Fit(hidden, target.vocabulary))
    heads = MedusaHeads(files, target.dtype, target.device, ends.head)
    shared = files.heads * target.vocabulary * hidden * target.dtype.itemsize if files.shared else 0
    say(f"{files.heads} Medusa heads, {heads.weight_bytes >> 20} MiB")
    cost = (heads.weight_bytes + shared) / target.weight_bytes / files.heads
    behind_the_norm = len(target.shapes) + 1
    return MedusaPart(heads, Reads((behind_the_norm,), hidden, _as_it_is), cost)


def _as_it_is(taps: Tensor) -> Tensor:
    return taps


class MedusaProposer:
    """Chains and trees from the heads."""

    name = NAME

    def __init__(self, heads: MedusaHeads, features: Tensor, cost: float) -> None:
        """features: [slots, H], the target's last hidden state, behind its final norm."""
        self._heads = heads
        self._features = features
        self.cost = cost

    def options(self, sequence: Seq) -> tuple[Option, ...]:
        """See Proposer. Nothing for a prompt of one token, of which nothing is computed yet."""
        if sequence.table.committed == 0:
            return ()
        return tuple(Option(self.name, self._heads.count, width=width) for width in _WIDTHS)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """See Proposer."""
        if not asks:
            return []
        last = [ask.sequence.table.slot(ask.sequence.table.committed - 1) for ask in asks]
        hidden = self._features[send(last, self._features.device)]
        logits = self._heads(hidden, max(ask.levels for ask in asks))
        return by_shape(
            asks,
            lambda mine: _chains([asks[i] for i in mine], logits[:, send(mine, logits.device)]),
            lambda mine: _trees([asks[i] for i in mine], logits[:, send(mine, logits.device)]),
        )

    def forget(self, request: str) -> None:
        """See Proposer. There is no state to drop."""

    def distrust(self, blocks: Sequence[int]) -> None:
        """See Keeper. The features that it reads are cleared with the target's keys."""


def _chains(asks: Sequence[Ask], logits: Tensor) -> list[Draft]:
    """logits: [heads, B, V]."""
    return draw_chains(asks, lambda active, drafted: logits[len(drafted[0]), send(active, logits.device)])


def _trees(asks: Sequence[Ask], logits: Tensor) -> list[Draft]:
    """logits: [heads, B, V].

    A head says the same after whatever the heads before it guessed. So a grammar masks the first level alone; the
    others are cut afterwards.
    """
    heads, texts, _ = logits.shape
    rows = [
        Row(ask.sequence.edits, (), None if head else allowed(ask, ()))
        for head in range(heads)
        for ask in asks
    ]
    params = [ask.sequence.sampling for _ in range(heads) for ask in asks]
    best = of_logits(edit(logits.flatten(0, 1), rows), params, max(ask.k for ask in asks))

    def likeliest_of(active: Sequence[int], trees: Sequence[Grown], _: int) -> Likeliest:
        rows = [
            tree.level * texts + i
            for i, tree in zip(active, trees, strict=True)
            for _ in range(tree.frontier)
        ]
        return Likeliest(best.tokens[rows], best.logs[rows])

    return grow_trees(asks, likeliest_of, width=lambda ask: ask.k)
