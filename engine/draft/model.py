"""A smaller model drafts for the target.

Source: Leviathan et al., "Fast inference from transformers via speculative decoding", ICML 2023. The draft has keys and
values of its own. They are brought up to date when it is asked, so nothing goes stale while drafting is off; what was
missed meanwhile is computed in parts, so that no step waits for a whole prompt, and until then there is no draft.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from torch import Tensor

from engine.batch import Span
from engine.draft.base import NO_DRAFT, Ask, Draft
from engine.draft.chains import draw_chains
from engine.draft.reading import Reader, Reading
from engine.draft.shape import MOST_NODES
from engine.draft.tree import Grown, Likeliest, by_shape, grow_trees, likeliest
from engine.draft.vocabulary import Vocabulary
from engine.kv.memory import KVMemory
from engine.model.loader import LoadedModel
from engine.model.runner import Runner
from engine.sequence import Sequence as Seq
from policies.base import Option

# Rows that a text which drafts all along may lack: what a round of the longest draft commits, and a token before it.
_NEAR: Final = 18
WIDTHS: Final = (1, 2, 4)
"""Of the trees that it offers; 1 is a chain."""


class ModelProposer:
    """Drafts level by level, all asking sequences at once."""

    name = "model"

    def __init__(
        self,
        draft: LoadedModel,
        memory: KVMemory,
        reader: Reader,
        vocabulary: Vocabulary,
        *,
        cost: float,
        catch_up: int,
    ) -> None:
        """memory: the draft's own. catch_up: rows in a step for texts that the draft is far behind of."""
        self._draft = draft
        self._memory = memory
        self._runner = Runner(memory, draft.kernels)
        self._reader = reader
        self._vocabulary = vocabulary
        self._catch_up = catch_up
        self.cost = cost

    def options(self, sequence: Seq) -> tuple[Option, ...]:
        """See Proposer. As far as the draft's own context reaches, and what places there are for its keys."""
        length = self._reader.length(sequence)
        places = self._reader.room(sequence, length + MOST_NODES) - length
        levels = min(places, self._draft.reach - length)
        if levels <= 0:
            return ()
        owed = self._reader.owed(sequence)
        widths = WIDTHS if places == MOST_NODES else (1,)  # each node of a tree wants a place of its own
        return tuple(Option(self.name, levels, width=width, owed=owed) for width in widths)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """See Proposer. A pass for each level, the first one over all that is new in the texts."""
        opened = [(i, self._reader.open(ask.sequence, ask.k)) for i, ask in enumerate(asks)]
        readings = {i: reading for i, reading in opened if reading is not None}
        rows = share(readings, self._catch_up)
        ready = [i for i, reading in readings.items() if rows[i] == len(reading.fresh)]
        behind = [i for i in readings if i not in ready]
        self._read([(asks[i], readings[i], rows[i]) for i in behind])
        drawn = by_shape(
            [asks[i] for i in ready],
            lambda mine: self._chains([asks[ready[i]] for i in mine], [readings[ready[i]] for i in mine]),
            lambda mine: self._trees([asks[ready[i]] for i in mine], [readings[ready[i]] for i in mine]),
        )
        drafts = dict(zip(ready, drawn, strict=True))
        return [drafts.get(i, NO_DRAFT) for i in range(len(asks))]

    def forget(self, request: str) -> None:
        """See Proposer."""
        self._reader.forget(request)

    def distrust(self, blocks: Sequence[int]) -> None:
        """See Keeper."""
        self._memory.clear(self._reader.distrust(blocks))

    def _read(self, parts: Sequence[tuple[Ask, Reading, int]]) -> None:
        """So many rows of these texts, which are not read to their ends yet."""
        spans = [
            Span(reading.table, reading.start, reading.fresh[:rows], 0) for _, reading, rows in parts if rows
        ]
        if spans:
            self._pass(spans)
        for ask, reading, rows in parts:
            self._reader.close(ask.sequence, reading.start + rows, [])

    def _chains(self, asks: Sequence[Ask], readings: Sequence[Reading]) -> list[Draft]:
        def logits_of(which: Sequence[int], drafted: Sequence[list[int]]) -> Tensor:
            return self._say([self._last(readings[i], own) for i, own in zip(which, drafted, strict=True)])

        drafts = draw_chains(asks, logits_of)
        for ask, reading, draft in zip(asks, readings, drafts, strict=True):
            written = reading.end + len(draft.tokens) - 1 if draft.tokens else reading.start
            self._reader.close(ask.sequence, written, draft.tokens)  # the last guess was read by nobody
        return drafts

    def _trees(self, asks: Sequence[Ask], readings: Sequence[Reading]) -> list[Draft]:
        def likeliest_of(which: Sequence[int], trees: Sequence[Grown], most: int) -> Likeliest:
            logits = self._say([self._tree(readings[i], tree) for i, tree in zip(which, trees, strict=True)])
            return likeliest([asks[i] for i in which], trees, logits, most)

        drafts = grow_trees(asks, likeliest_of)
        for ask, reading in zip(asks, readings, strict=True):
            self._reader.close(ask.sequence, reading.end, [])  # a path's keys do not lie one after another
        return drafts

    def _last(self, reading: Reading, drafted: list[int]) -> Span:
        """The row of the last token, drafted ones included; behind what is new in the text, if there are none."""
        if not drafted:
            return Span(reading.table, reading.start, reading.fresh, 1)
        last = self._vocabulary.to_draft(drafted[-1:])
        return Span(reading.table, reading.end + len(drafted) - 1, last, 1)

    def _tree(self, reading: Reading, tree: Grown) -> Span:
        """The same of a tree: the root's row and one for each node."""
        if not tree.tokens:
            return self._last(reading, [])
        tokens = [reading.fresh[-1], *self._vocabulary.to_draft(tree.tokens)]
        return Span(reading.table, reading.end - 1, tokens, tree.frontier, tree.parents)

    def _say(self, spans: Sequence[Span]) -> Tensor:
        """[R, target's V]."""
        return self._vocabulary.to_target(self._pass(spans))

    def _pass(self, spans: Sequence[Span]) -> Tensor:
        return self._runner.run(self._draft.forward, self._runner.pack(spans))


def share(readings: Mapping[int, Reading], most: int) -> dict[int, int]:
    """Rows to compute now of these texts: all where the draft is near, and of the others about `most`, in order."""
    rows = {}
    for text, reading in readings.items():
        lack = len(reading.fresh)
        if lack <= _NEAR:
            rows[text] = lack
            continue
        rows[text] = min(lack, max(most, 0))
        if reading.indivisible and most > 0:
            rows[text] = lack
        most -= rows[text]
    return rows
