"""How far a draft's own keys and values follow each text.

A draft with a cache of its own keeps it in a memory of its own, under the target's block tables: the same blocks, the
same slots. It is filled when the draft is asked, not before, so it lags behind the text by whatever was committed
meanwhile. Two records say where it is sound:

    by text     so many leading positions, in these blocks, of this tenure of the table (preemption ends it)
    by block    a stamp: the digest of the prefix for which all of the block was filled

A text resumes from its own record or from the stamps of the blocks that it shares, whichever reaches further. Before
anything is written into a block its stamp goes: so a stamp never outlives what it speaks of.
"""

from dataclasses import dataclass

from engine.sequence import Sequence


@dataclass(slots=True)
class _Record:
    tenure: int
    blocks: list[int]  # those that hold the positions below `end`
    end: int


class Follower:
    """The records of one draft. Positions below `start` need not be computed again."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._records: dict[str, _Record] = {}
        self._stamps: dict[int, bytes] = {}

    def start(self, sequence: Sequence) -> int:
        """The first position of the text's reserved places whose key is not there."""
        return max(self._own(sequence), self._stamped(sequence))

    def write(self, sequence: Sequence, start: int, end: int) -> None:
        """To be called before keys of positions start..end-1 are written, which may be guesses."""
        for block in self._blocks(sequence, start, end):
            self._stamps.pop(block, None)

    def reached(self, sequence: Sequence, end: int) -> None:
        """Keys of all positions below `end` are there now, each computed for the committed text."""
        assert end <= len(sequence.tokens), (
            f"{end=} {len(sequence.tokens)=}: only what is committed can be kept"
        )
        table = sequence.table
        held = -(-end // self._size)
        self._records[sequence.id] = _Record(table.tenure, table.blocks[:held], end)
        whole = end // self._size
        for block, digest in zip(table.blocks, sequence.chain.leading(sequence.tokens, whole), strict=False):
            self._stamps[block] = digest

    def forget(self, text: str) -> None:
        """The text has ended; its blocks keep their stamps. Unknown ones are ignored."""
        self._records.pop(text, None)

    def _blocks(self, sequence: Sequence, start: int, end: int) -> list[int]:
        return sequence.table.blocks[start // self._size : -(-end // self._size)]

    def _own(self, sequence: Sequence) -> int:
        record = self._records.get(sequence.id)
        if record is None or record.tenure != sequence.table.tenure:
            return 0
        same = 0
        for mine, theirs in zip(record.blocks, sequence.table.blocks, strict=False):
            if mine != theirs:  # it was shared, and copied before the target wrote into it
                break
            same += 1
        return min(record.end, same * self._size)

    def _stamped(self, sequence: Sequence) -> int:
        """Whole blocks at the text's start that were filled for this very prefix."""
        blocks = sequence.table.blocks
        digests = sequence.chain.leading(
            sequence.tokens, min(len(sequence.tokens) // self._size, len(blocks))
        )
        found = 0
        for block, digest in zip(blocks, digests, strict=False):
            if self._stamps.get(block) != digest:
                break
            found += 1
        return found * self._size
