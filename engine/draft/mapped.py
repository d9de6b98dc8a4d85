"""A draft with a tokenizer of its own: how it reads the target's texts, and what of its rows is of use.

See engine.pairing.shared. A text has another length to such a draft, so its keys lie in places of their own: as many as
the target has, given to the texts that were asked for last. They are not shared between texts.
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.draft.follower import agreeing
from engine.draft.reading import Reading
from engine.draft.vocabulary import never
from engine.kv.pool import BlockPool, OutOfBlocksError
from engine.kv.table import BlockTable
from engine.pairing.shared import SharedTokens
from engine.sequence import Sequence


class MappedVocabulary:
    """See Vocabulary. What the draft says of tokens that the target lacks is left out, and the rest is its law."""

    def __init__(self, shared: SharedTokens, target_size: int, device: torch.device) -> None:
        self._shared = shared
        self._size = target_size
        self._targets = torch.from_numpy(shared.targets).to(device)
        self._drafts = torch.from_numpy(shared.drafts).to(device)

    def to_target(self, logits: Tensor) -> Tensor:
        """See Vocabulary."""
        rows = logits.new_full((len(logits), self._size), never(logits.dtype))
        return rows.index_copy_(1, self._targets, logits.index_select(1, self._drafts))

    def to_draft(self, tokens: Tokens[int]) -> list[int]:
        """See Vocabulary. A token that it cannot say was drawn where nothing else was allowed: any will do."""
        return [self._shared.named(token, otherwise=0) for token in tokens]


@dataclass(slots=True)
class _Text:
    table: BlockTable
    taken: int = 0  # so many of the target's tokens were read
    tokens: list[int] = field(default_factory=list)  # as the draft numbers them
    end: int = 0  # keys of so many of them are there
    guesses: list[int] = field(default_factory=list)  # and of these behind them
    busy: bool = False  # about to be written

    @property
    def start(self) -> int:
        """The first position to compute: the last token's at the latest, whose logits are wanted."""
        found = self.end + agreeing(self.guesses, self.tokens[self.end :])
        return min(found, len(self.tokens) - 1)


class MappedTokens:
    """See Reader."""

    def __init__(self, shared: SharedTokens, blocks: int, block_size: int) -> None:
        self._shared = shared
        self._pool = BlockPool(blocks, block_size)
        self._texts: dict[str, _Text] = {}  # those read last come last
        self._granted: dict[str, int] = {}  # blocks of those that were drafted for last
        self._closed = True  # whether the next text to be opened begins another round

    def length(self, sequence: Sequence) -> int:
        """See Reader."""
        return len(self._read(sequence).tokens)

    def owed(self, sequence: Sequence) -> int:
        """See Reader."""
        text = self._read(sequence)
        return len(text.tokens) - 1 - text.start if text.tokens else 0

    def room(self, sequence: Sequence, most: int) -> int:
        """See Reader. Those that were drafted for last keep what they have: who came later would find no room."""
        others = self._in_use - self._granted.get(sequence.id, 0)
        return min(most, (self._pool.total - others) * self._pool.block_size)

    def open(self, sequence: Sequence, room: int) -> Reading | None:
        """See Reader. Takes the places of texts that were not asked for lately."""
        if self._closed:
            self._granted.clear()
            self._closed = False
        text = self._read(sequence)
        self._texts[sequence.id] = self._texts.pop(sequence.id)
        if not text.tokens:
            return None
        start = text.start
        text.table.commit(start)
        text.busy = True
        if not self._reserve(text.table, len(text.tokens) + room):
            text.table.release()  # what is kept of a text that gets no draft would only keep others from theirs
            text.end, text.guesses, text.busy = 0, [], False
            return None
        self._granted[sequence.id] = len(text.table.blocks)
        return Reading(text.table, start, text.tokens[start:])

    def close(self, sequence: Sequence, end: int, drafted: Tokens[int]) -> None:
        """See Reader."""
        text = self._texts[sequence.id]
        text.end = min(end, len(text.tokens))
        text.guesses = [self._shared.named(token, otherwise=0) for token in drafted[: end - text.end]]
        text.busy = False
        self._closed = True

    def forget(self, text: str) -> None:
        """See Reader."""
        self._granted.pop(text, None)
        found = self._texts.pop(text, None)
        if found is not None:
            found.table.release()

    def distrust(self, blocks: Tokens[int]) -> list[int]:  # noqa: ARG002
        """See Reader. It reads nothing of the target's but its text, in places that the target's say nothing about."""
        return []

    @property
    def _in_use(self) -> int:
        return sum(self._granted.values())

    def _read(self, sequence: Sequence) -> _Text:
        """The text up to date."""
        text = self._texts.setdefault(sequence.id, _Text(BlockTable(self._pool)))
        text.tokens += self._shared.reading(sequence.tokens[text.taken :])
        text.taken = len(sequence.tokens)
        return text

    def _reserve(self, table: BlockTable, positions: int) -> bool:
        """Whether there is room, if need be that of others."""
        idle = (text for text in self._texts.values() if not text.busy and text.table.blocks)
        while True:
            try:
                table.reserve(positions)
            except OutOfBlocksError:
                other = next(idle, None)
                if other is None:
                    return False
                other.table.release()
                other.end, other.guesses = 0, []
            else:
                return True
