"""The block pool: who holds which block of the KV memory, and what prefix it keeps. The memory is `engine.kv.memory`.

    free      nobody holds it, and there is nothing in it worth keeping
    used      tables hold it, one or more
    cached    nobody holds it, but it keeps a prefix that a request may come for; taken when no block is free

A block is *published* under the digest of all the text up to its end (`engine.kv.prefix`) once it is full and
committed. From then on nobody writes into it.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence


class OutOfBlocksError(Exception):
    """The pool has fewer blocks to give than asked for."""

    def __init__(self, asked: int, available: int) -> None:
        super().__init__(f"{asked} KV blocks asked for, {available} available")
        self.asked = asked
        self.available = available


class BlockPool:
    """Hands out blocks by number, and counts who holds them."""

    def __init__(self, blocks: int, block_size: int, *, caching: bool = False) -> None:
        """caching: whether published blocks are kept for others."""
        self.total = blocks
        self.block_size = block_size
        self._caching = caching
        self.empty()

    def empty(self) -> None:
        """Nobody holds a block any more, and none keeps anything. Whoever held one must forget it."""
        self._free = list(range(self.total - 1, -1, -1))
        self._holders = [0] * self.total
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._digests: dict[int, bytes] = {}
        self._published: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        """Blocks with nothing in them."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds but that keep a prefix."""
        return len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that can be taken."""
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        """Blocks that sequences hold."""
        return self.total - self.available

    def blocks_for(self, positions: int) -> int:
        """Blocks that hold so many positions."""
        return -(-positions // self.block_size)

    def take(self, count: int) -> list[int]:
        """Take blocks to write into, cached ones last. Raises OutOfBlocksError, taking none."""
        if count > self.available:
            raise OutOfBlocksError(count, self.available)
        while len(self._free) < count:
            block, _ = self._cached.popitem(last=False)
            self._withdraw(block)
            self._free.append(block)
        taken = self._free[len(self._free) - count :][::-1]  # rising where it can be: memory is read in order
        del self._free[len(self._free) - count :]
        for block in taken:
            self._holders[block] = 1
        return taken

    def hold(self, blocks: Iterable[int]) -> None:
        """One more table holds each of these blocks, which are used or cached."""
        for block in blocks:
            self._cached.pop(block, None)
            self._holders[block] += 1

    def give_back(self, blocks: Sequence[int]) -> None:
        """One table less holds each of these blocks, which are in the order of their text.

        The end of a text is of no use without its beginning, so it is the end that others take first.
        """
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block] > 0:
                continue
            if block in self._digests:
                self._cached[block] = None
            else:
                self._free.append(block)

    def shared(self, block: int) -> bool:
        """Whether more than one table holds it."""
        return self._holders[block] > 1

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of these nobody holds."""
        return sum(self._holders[block] == 0 for block in blocks)

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """The blocks that keep the longest prefix known. They may be taken by others until they are held."""
        found = []
        for digest in digests:
            block = self._published.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def publish(self, block: int, digest: bytes) -> None:
        """A held block is full and final. Where another block keeps the same text already, that one stays known."""
        if self._caching and digest not in self._published:
            self._published[digest] = block
            self._digests[block] = digest

    def reclaim(self, block: int) -> None:
        """Its only holder is about to write into it: what it kept is no longer to be found."""
        assert self._holders[block] == 1, f"block {block} has {self._holders[block]} holders"
        self._withdraw(block)

    def distrust(self, blocks: Iterable[int]) -> list[int]:
        """What these held blocks keep is wrong: nobody is to find it. Returns those with a single holder."""
        suspects = list(blocks)
        for block in suspects:
            self._withdraw(block)
        return [block for block in suspects if not self.shared(block)]

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Assert that each block is free, cached, or held by as many of these tables as the pool believes."""
        held = Counter(block for blocks in tables for block in blocks)
        believed = {block: count for block, count in enumerate(self._holders) if count}
        assert held == believed, f"tables hold {dict(held)}, the pool believes {believed}"
        seen = sorted([*self._free, *self._cached, *held])
        assert seen == list(range(self.total)), (
            f"{self.total} blocks, but free, cached and held are {len(seen)}: {seen[:20]}"
        )
        assert self._digests.keys() >= self._cached.keys(), "a cached block keeps nothing"
        assert self._digests.keys().isdisjoint(self._free), "a free block keeps something"
        assert self._published == {digest: block for block, digest in self._digests.items()}, (
            "index and blocks differ"
        )

    def _withdraw(self, block: int) -> None:
        digest = self._digests.pop(block, None)
        if digest is not None:
            del self._published[digest]
