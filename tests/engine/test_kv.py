"""Blocks: the invariant of a table, who shares what, and what is kept of a text that has ended."""

import pytest
import torch

from engine.kv.memory import KVMemory, LayerShape
from engine.kv.pool import BlockPool, OutOfBlocksError
from engine.kv.prefix import Chain, root
from engine.kv.table import BlockTable


def test_a_rejected_draft_returns_its_whole_blocks() -> None:
    pool = BlockPool(4, block_size=4)
    table = BlockTable(pool)
    table.reserve(6)
    table.commit(6)
    table.reserve(13)
    assert pool.free == 0
    table.commit(7)
    assert (pool.free, table.committed, table.written, table.allocated) == (2, 7, 7, 8)
    table.release()
    assert pool.free == 4


def test_slots_follow_the_blocks() -> None:
    pool = BlockPool(3, block_size=2)
    table = BlockTable(pool)
    table.reserve(5)
    a, b, c = table.blocks
    assert table.slots(1, 5) == [2 * a + 1, 2 * b, 2 * b + 1, 2 * c]


def test_commit_backwards_or_beyond_what_was_written_is_our_fault_and_says_so() -> None:
    table = BlockTable(BlockPool(4, block_size=4))
    table.reserve(4)
    table.commit(2)
    for wrong in (1, 3, 5):
        with pytest.raises(AssertionError, match="positions"):
            table.commit(wrong)


def filled(pool: BlockPool, text: list[int]) -> BlockTable:
    """A table that has computed this text, its whole blocks published."""
    table = BlockTable(pool)
    table.reserve(len(text))
    table.commit(len(text))
    table.publish(digests(pool, text))
    return table


def digests(pool: BlockPool, text: list[int], start: bytes = b"") -> list[bytes]:
    return Chain(start, pool.block_size).leading(text, len(text) // pool.block_size)


def test_whole_blocks_of_an_ended_text_are_found_until_others_need_them() -> None:
    """The end of a text is taken before its beginning, and blocks with nothing in them before both."""
    pool = BlockPool(5, block_size=2, caching=True)
    table = filled(pool, [1, 2, 3, 4, 5])
    first, second, _ = table.blocks
    table.release()
    assert (pool.free, pool.cached, pool.used) == (3, 2, 0)
    wanted = digests(pool, [1, 2, 3, 4, 9, 9])
    assert pool.find(wanted) == [first, second]
    others = pool.take(4)
    assert second in others
    assert pool.find(wanted) == [first]
    pool.give_back(others)


def test_least_recently_used_text_goes_first() -> None:
    pool = BlockPool(4, block_size=2, caching=True)
    old, new = filled(pool, [1, 1]), filled(pool, [2, 2])
    old.release()
    new.release()
    again = BlockTable(pool)
    again.adopt(pool.find(digests(pool, [1, 1])), 2)
    again.release()
    pool.take(3)
    assert pool.find(digests(pool, [1, 1]))
    assert not pool.find(digests(pool, [2, 2]))


def test_a_block_is_known_by_all_that_comes_before_it() -> None:
    """Equal tokens after different beginnings, or of another model or adapter, are not the same block."""
    pool = BlockPool(8, block_size=2, caching=True)
    filled(pool, [1, 2, 3, 4])
    assert len(pool.find(digests(pool, [1, 2, 3, 4]))) == 2
    assert not pool.find(digests(pool, [3, 4]))
    assert len(pool.find(digests(pool, [1, 2, 9, 9]))) == 1
    assert not pool.find(digests(pool, [9, 9, 3, 4]))
    assert not pool.find(digests(pool, [1, 2, 3, 4], root("another model")))
    assert len({root("a"), root("b"), root("a", "adapter"), root("a\0adapter")}) >= 3


def test_a_block_that_another_text_reads_is_copied_before_it_is_written() -> None:
    """Whoever writes first copies; the last holder writes in place."""
    pool = BlockPool(6, block_size=4, caching=True)
    parent = filled(pool, [1, 2, 3, 4, 5, 6])
    whole, partial = parent.blocks
    fork = BlockTable(pool)
    fork.adopt(parent.blocks, 5)
    copy = parent.reserve(7)
    assert copy == (partial, parent.blocks[1])
    assert parent.blocks[1] != partial
    assert fork.reserve(7) is None
    assert fork.blocks == [whole, partial]
    assert parent.blocks[0] == whole


def test_a_published_block_is_not_found_once_its_last_holder_writes_into_it() -> None:
    pool = BlockPool(6, block_size=4, caching=True)
    parent = filled(pool, [1, 2, 3, 4])
    fork = BlockTable(pool)
    fork.adopt(parent.blocks, 3)
    parent.release()
    assert pool.find(digests(pool, [1, 2, 3, 4]))
    assert fork.reserve(4) is None
    assert not pool.find(digests(pool, [1, 2, 3, 4]))


def test_a_pool_without_room_for_a_copy_says_so_and_changes_nothing() -> None:
    pool = BlockPool(1, block_size=4)
    parent = filled(pool, [1, 2])
    fork = BlockTable(pool)
    fork.adopt(parent.blocks, 1)
    with pytest.raises(OutOfBlocksError):
        fork.reserve(2)
    assert fork.blocks == parent.blocks
    pool.check_integrity([parent.blocks, fork.blocks])


def test_copy_takes_all_layers() -> None:
    memory = KVMemory({i: LayerShape(1, 2, 3) for i in range(2)}, 3, 2, torch.float32, torch.device("cpu"))
    for store in (*memory.keys.values(), *memory.values.values()):
        store.copy_(torch.randn(store.shape))
    kept = {i: memory.keys[i][:2].clone() for i in range(2)}
    memory.copy(0, 2)
    for i in range(2):
        assert torch.equal(memory.keys[i][4:6], kept[i])
        assert torch.equal(memory.values[i][4:6], memory.values[i][:2])
