"""The block pool: which blocks of the KV memory are free. The memory itself is `engine.kv.memory`."""

from collections.abc import Iterable, Sequence


class OutOfBlocksError(Exception):
    """The pool has fewer free blocks than asked for."""

    def __init__(self, asked: int, free: int) -> None:
        super().__init__(f"{asked} KV blocks asked for, {free} free")
        self.asked = asked
        self.free = free


class BlockPool:
    """Hands out blocks by number. A promise sets blocks aside for a sequence's worst case without naming them.

    Every sequence is promised all the blocks that it can ever need before it starts, so `take` cannot fail for a
    sequence that keeps to its promise, and no sequence waits half-way for another to end.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        self.total = blocks
        self.block_size = block_size
        self._free = list(range(blocks - 1, -1, -1))
        self.promised = 0

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks that sequences hold."""
        return self.total - self.free

    def blocks_for(self, positions: int) -> int:
        """Blocks that hold so many positions."""
        return -(-positions // self.block_size)

    def promise(self, blocks: int) -> bool:
        """Set blocks aside if there are so many that nobody was promised."""
        if self.promised + blocks > self.total:
            return False
        self.promised += blocks
        return True

    def withdraw(self, blocks: int) -> None:
        """End a promise."""
        self.promised -= blocks
        assert self.promised >= 0, f"{self.promised=}"

    def take(self, count: int) -> list[int]:
        """Take free blocks. Raises OutOfBlocksError, taking none."""
        if count > self.free:
            raise OutOfBlocksError(count, self.free)
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken

    def give_back(self, blocks: Sequence[int]) -> None:
        """Return blocks."""
        self._free += blocks

    def check_integrity(self, held: Iterable[Sequence[int]]) -> None:
        """Assert that each block is either free or held by exactly one of the tables given."""
        seen = sorted([*self._free, *(block for blocks in held for block in blocks)])
        assert seen == list(range(self.total)), (
            f"{self.total} blocks, but free and held are {len(seen)}: {seen[:20]}"
        )
