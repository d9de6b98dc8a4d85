"""Blocks: the invariant of a table, and that a pool never loses one."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from engine.kv.pool import BlockPool, OutOfBlocksError
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


def test_a_promise_is_kept_or_not_given() -> None:
    pool = BlockPool(4, block_size=4)
    assert pool.promise(3)
    assert not pool.promise(2)
    pool.withdraw(3)
    assert pool.promise(4)


def test_commit_backwards_or_beyond_what_was_written_is_our_fault_and_says_so() -> None:
    table = BlockTable(BlockPool(4, block_size=4))
    table.reserve(4)
    table.commit(2)
    for wrong in (1, 3, 5):
        with pytest.raises(AssertionError, match="positions"):
            table.commit(wrong)


class Tables(RuleBasedStateMachine):
    """Any order of reserve, commit and release on tables of one small pool."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12, block_size=3)
        self.all: list[BlockTable] = []

    @rule(target=tables)
    def new(self) -> BlockTable:
        table = BlockTable(self.pool)
        self.all.append(table)
        return table

    @rule(table=tables, more=st.integers(1, 10))
    def reserve(self, table: BlockTable, more: int) -> None:
        positions = table.committed + more
        if self.pool.blocks_for(positions) - len(table.blocks) <= self.pool.free:
            table.reserve(positions)
            return
        before = list(table.blocks), table.written
        with pytest.raises(OutOfBlocksError):
            table.reserve(positions)
        assert (table.blocks, table.written) == before

    @rule(table=tables, share=st.floats(0, 1))
    def commit(self, table: BlockTable, share: float) -> None:
        table.commit(table.committed + int(share * (table.written - table.committed)))

    @rule(table=consumes(tables))
    def release(self, table: BlockTable) -> None:
        table.release()
        self.all.remove(table)

    @invariant()
    def nothing_is_lost(self) -> None:
        self.pool.check_integrity(table.blocks for table in self.all)
        for table in self.all:
            table.check()


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
