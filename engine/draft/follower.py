"""How far a draft's own keys and values follow each text.

A draft with a cache of its own keeps it in a memory of its own, under the target's block tables: the same blocks, the
same slots. It is filled when the draft is asked, not before, so it lags behind the text by whatever was committed
meanwhile. What is in a block is written down by block, and nothing by text:

    before    the digest of the prefix that the block was filled behind
    tokens    those whose keys lie in it, from its first slot on; guesses too

A text goes on where what its blocks say parts from what it says. So guesses that were accepted are there, and those
that were rejected are not; blocks that are shared, or come back from the prefix cache or after a preemption, have what
they had; and a block that others wrote into meanwhile says so.
"""

from collections.abc import Sequence as Tokens
from typing import NamedTuple

from engine.kv.prefix import extended
from engine.sequence import Sequence


class _Fill(NamedTuple):
    """What is in a block."""

    before: bytes
    tokens: list[int]
    after: bytes  # the digest of the prefix that ends with the block; empty until it is full


_NOTHING = _Fill(b"", [], b"")


class Follower:
    """The records of one draft. Positions below `start` need not be computed again."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._fills: dict[int, _Fill] = {}

    def start(self, sequence: Sequence) -> int:
        """The first position of the text whose key is not there: at most its length."""
        digests = self._digests(sequence)
        whole = 0
        for block, digest in zip(sequence.table.blocks, digests, strict=False):
            if self._fills.get(block, _NOTHING).after != digest:
                break
            whole += 1
        if whole == len(sequence.table.blocks):
            return whole * self._size
        fill = self._fills.get(sequence.table.blocks[whole], _NOTHING)
        if fill.before != (digests[whole - 1] if whole else sequence.chain.start):
            return whole * self._size
        at = whole * self._size
        return at + agreeing(fill.tokens, sequence.tokens[at : at + self._size])

    def write(self, sequence: Sequence, start: int, end: int) -> None:
        """To be called before keys of positions start..end-1 are written, in reserved places."""
        for block in sequence.table.blocks[start // self._size : -(-end // self._size)]:
            self._fills.pop(block, None)

    def reached(self, sequence: Sequence, end: int, guesses: Tokens[int] = ()) -> None:
        """Keys of all positions below `end` are there now, computed for the text and for these guesses behind it."""
        assert end <= len(sequence.tokens) + len(guesses), f"{end=} {len(sequence.tokens)=} {len(guesses)=}"
        digests, blocks = self._digests(sequence), sequence.table.blocks
        at = -(-end // self._size)
        while at and (
            at > len(digests) or self._fills.get(blocks[at - 1], _NOTHING).after != digests[at - 1]
        ):
            at -= 1  # a block that is right has only right ones before it
        before = digests[at - 1] if at else sequence.chain.start
        rest = [*sequence.tokens[at * self._size :], *guesses][: end - at * self._size]
        for first in range(0, len(rest), self._size):
            tokens = rest[first : first + self._size]
            after = extended(before, tokens) if len(tokens) == self._size else b""
            self._fills[blocks[at + first // self._size]] = _Fill(before, tokens, after)
            before = after

    def forget(self, blocks: Tokens[int]) -> None:
        """What is in these blocks, which no other text holds, is not to be gone on from."""
        for block in blocks:
            self._fills.pop(block, None)

    def _digests(self, sequence: Sequence) -> list[bytes]:
        """Of the text's whole blocks that have a place."""
        whole = min(len(sequence.tokens) // self._size, len(sequence.table.blocks))
        return sequence.chain.leading(sequence.tokens, whole)


def agreeing(some: Tokens[int], others: Tokens[int]) -> int:
    """So many first tokens are the same."""
    shorter = min(len(some), len(others))
    if some[:shorter] == others[:shorter]:
        return shorter
    pairs = enumerate(zip(some, others, strict=False))
    return next((at for at, (a, b) in pairs if a != b), shorter)
