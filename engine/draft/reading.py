"""Texts as a draft model reads them, with its own keys in places of its own memory."""

from collections.abc import Sequence as Tokens
from typing import NamedTuple, Protocol

from engine.draft.follower import Follower
from engine.draft.vocabulary import Vocabulary
from engine.kv.table import BlockTable
from engine.sequence import Sequence


class Reading(NamedTuple):
    """What the draft has to read of a text before it can guess: at least the last token. Valid until the text grows."""

    table: BlockTable
    start: int  # keys of positions below are there
    fresh: list[int]  # the draft's tokens from there on

    @property
    def end(self) -> int:
        """Place of the first guess."""
        return self.start + len(self.fresh)

    @property
    def indivisible(self) -> bool:
        """Whether it is to be read all at once: an encoder sees its whole prompt."""
        return self.start < self.table.source


class Reader(Protocol):
    """Where a draft's keys lie, and how far they follow each text."""

    def length(self, sequence: Sequence) -> int:
        """Of the text, in the draft's tokens. Asked in every step: cheap."""

    def owed(self, sequence: Sequence) -> int:
        """Of the draft's tokens, those to read before the text's last one. Asked in every step: cheap."""

    def room(self, sequence: Sequence, most: int) -> int:
        """Places that the text and guesses behind it could have now, `most` at most. Asked in every step: cheap."""

    def open(self, sequence: Sequence, room: int) -> Reading | None:
        """What is new in the text. It is about to be written, and guesses in as much room behind it. None: no room."""

    def close(self, sequence: Sequence, end: int, drafted: Tokens[int]) -> None:
        """Keys below `end` are there now, computed for the text and for these tokens of the target's behind it."""

    def forget(self, text: str) -> None:
        """The text has ended. Unknown ones are ignored."""

    def distrust(self, blocks: Tokens[int]) -> list[int]:
        """A text whose alone these blocks of the target's were has failed. Returns the blocks of the draft's own memory
        that belong to them, and what was known of them is forgotten.
        """


class SameTokens:
    """For a draft with the target's tokenizer: its keys lie in the target's places, see engine.draft.follower."""

    def __init__(self, block_size: int, vocabulary: Vocabulary) -> None:
        self._follower = Follower(block_size)
        self._vocabulary = vocabulary

    def length(self, sequence: Sequence) -> int:
        """See Reader."""
        return len(sequence.tokens)

    def owed(self, sequence: Sequence) -> int:
        """See Reader."""
        return max(len(sequence.tokens) - 1 - self._start(sequence), 0)

    def room(self, sequence: Sequence, most: int) -> int:  # noqa: ARG002
        """See Reader. It is reserved with the target's."""
        return most

    def open(self, sequence: Sequence, room: int) -> Reading:
        """See Reader. Room was reserved with the target's."""
        length = len(sequence.tokens)
        start = min(self._start(sequence), length - 1)  # the last row's logits are wanted
        self._follower.write(sequence, start, length + room)
        return Reading(sequence.table, start, self._vocabulary.to_draft(sequence.tokens[start:]))

    def close(self, sequence: Sequence, end: int, drafted: Tokens[int]) -> None:
        """See Reader."""
        self._follower.reached(sequence, end, drafted)

    def forget(self, text: str) -> None:
        """See Reader. Its blocks keep what they have, for others that begin alike."""

    def distrust(self, blocks: Tokens[int]) -> list[int]:
        """See Reader. They have the same numbers."""
        self._follower.forget(blocks)
        return list(blocks)

    def _start(self, sequence: Sequence) -> int:
        """The first position to compute; an encoder sees its whole prompt."""
        start = self._follower.start(sequence)
        return 0 if start < sequence.table.source else start
