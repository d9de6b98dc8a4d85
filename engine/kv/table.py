"""Which blocks hold a sequence's keys and values, and how many of its positions are what.

    positions   0 ............ committed ...... written ........ allocated
                | final: of     | of a draft,    | reserved,
                | accepted      | may be rolled  | nothing there
                | tokens        | back           | yet

`committed <= written <= allocated` is the invariant; `check` asserts it.

Tables may share blocks. Whole ones are only ever read. The block that two tables share and one of them is about to
write into is copied first:

    text 0      [ a b c d ][ e f g . ]             [ a b c d ][ e f g . ]
    text 1       same       same           ->       same      [ e f x . ]   copied by reserve, then written
"""

from typing import NamedTuple

from engine.kv.pool import BlockPool


class Copy(NamedTuple):
    """Memory to copy, in all layers, before anything is written."""

    source: int
    target: int


class BlockTable:
    """The KV of one sequence. Holds its blocks until `release`."""

    def __init__(self, pool: BlockPool, source: int = 0) -> None:
        """source: so many of the first positions hold what an encoder made of the prompt."""
        self._pool = pool
        self.source = source
        self.blocks: list[int] = []
        self.committed = 0
        self.written = 0
        self._published = 0  # leading blocks that others may find

    @property
    def block_size(self) -> int:
        """Positions in a block."""
        return self._pool.block_size

    @property
    def allocated(self) -> int:
        """Positions that have a place in the pool."""
        return len(self.blocks) * self._pool.block_size

    def adopt(self, blocks: list[int], positions: int) -> None:
        """Begin with blocks that are others' or cached, whose first `positions` are this text's too."""
        assert not self.blocks, "only an empty table can begin with the blocks of others"
        assert self._pool.blocks_for(positions) == len(blocks), f"{positions=} {len(blocks)=}"
        self._pool.hold(blocks)
        self.blocks = list(blocks)
        self.committed = self.written = positions
        self._published = positions // self._pool.block_size

    def missing(self, positions: int) -> int:
        """Blocks that `reserve` would take for so many positions."""
        more = self._pool.blocks_for(positions) - len(self.blocks)
        return max(more, 0) + self._end_is_shared()

    def reserve(self, positions: int) -> Copy | None:
        """Make room for so many positions, and count them as written. Raises OutOfBlocksError, changing nothing.

        Returns what must be copied before anything is written at `committed` or behind.
        """
        taken = self._pool.take(self.missing(positions))
        copy = self._own_end(taken)
        self.blocks += taken
        self.written = max(self.written, positions)
        return copy

    def commit(self, positions: int) -> None:
        """Positions below this are final; what was written beyond is rolled back and its whole blocks returned."""
        assert self.committed <= positions <= self.written, f"{self.committed=} {positions=} {self.written=}"
        self.committed = self.written = positions
        keep = self._pool.blocks_for(positions)
        self._pool.give_back(self.blocks[keep:])
        del self.blocks[keep:]
        self.check()

    @property
    def unpublished(self) -> bool:
        """Whether a block has become full since the last `publish`."""
        return self.committed >= (self._published + 1) * self._pool.block_size

    def publish(self, digests: list[bytes]) -> None:
        """Let others find the full blocks. digests: of all of them, in order."""
        assert len(digests) == self.committed // self._pool.block_size, f"{len(digests)=} {self.committed=}"
        for at in range(self._published, len(digests)):
            self._pool.publish(self.blocks[at], digests[at])
        self._published = len(digests)

    def release(self) -> None:
        """Return all blocks."""
        self._pool.give_back(self.blocks)
        self.forget()

    def forget(self) -> None:
        """The pool has been emptied: there is nothing to return."""
        self.blocks = []
        self.committed = self.written = self._published = 0

    def slot(self, position: int) -> int:
        """Index of a position in the pool's slots."""
        size = self._pool.block_size
        return self.blocks[position // size] * size + position % size

    def slots(self, start: int, end: int) -> list[int]:
        """Indices of positions start..end-1."""
        size = self._pool.block_size
        return [self.blocks[p // size] * size + p % size for p in range(start, end)]

    def check(self) -> None:
        """Assert the invariant."""
        assert self.committed <= self.written <= self.allocated, (
            f"{self.committed=} {self.written=} {self.allocated=}"
        )

    def _partial(self) -> int | None:
        """Index of the block that is to be written into behind what is committed in it, if there is one."""
        at, filled = divmod(self.committed, self._pool.block_size)
        return at if filled else None

    def _end_is_shared(self) -> bool:
        at = self._partial()
        return at is not None and self._pool.shared(self.blocks[at])

    def _own_end(self, taken: list[int]) -> Copy | None:
        """Make the partial block this table's alone, with one of the blocks just taken if others hold it too."""
        at = self._partial()
        if at is None:
            return None
        block = self.blocks[at]
        if not self._pool.shared(block):
            self._pool.reclaim(block)
            return None
        self.blocks[at] = taken.pop()
        self._pool.give_back([block])
        return Copy(block, self.blocks[at])
