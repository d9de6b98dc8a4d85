"""Which blocks hold a sequence's keys and values, and how many of its positions are what.

    positions   0 ............ committed ...... written ........ allocated
                | final: of     | of a draft,    | reserved,
                | accepted      | may be rolled  | nothing there
                | tokens        | back           | yet

`committed <= written <= allocated` is the invariant; `check` asserts it.
"""

from engine.kv.pool import BlockPool


class BlockTable:
    """The KV of one sequence. Owns its blocks until `release`."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.blocks: list[int] = []
        self.committed = 0
        self.written = 0

    @property
    def allocated(self) -> int:
        """Positions that have a place in the pool."""
        return len(self.blocks) * self._pool.block_size

    def reserve(self, positions: int) -> None:
        """Make room for so many positions, and count them as written. Raises OutOfBlocksError, changing nothing."""
        missing = self._pool.blocks_for(positions) - len(self.blocks)
        if missing > 0:
            self.blocks += self._pool.take(missing)
        self.written = max(self.written, positions)

    def commit(self, positions: int) -> None:
        """Positions below this are final; what was written beyond is rolled back and its whole blocks returned."""
        assert self.committed <= positions <= self.written, f"{self.committed=} {positions=} {self.written=}"
        self.committed = self.written = positions
        keep = self._pool.blocks_for(positions)
        self._pool.give_back(self.blocks[keep:])
        del self.blocks[keep:]
        self.check()

    def release(self) -> None:
        """Return all blocks."""
        self._pool.give_back(self.blocks)
        self.blocks = []
        self.committed = self.written = 0

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
