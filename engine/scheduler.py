"""Who runs in the next step. First come, first served.

running and waiting are both in the order of arrival, and whoever runs came before all that wait. When blocks run out,
drafts give way first, then whoever came last of those that run: it is *preempted*, which means that its blocks go, that
it is the next to be admitted, and that its prompt and text are computed anew then. The one that came first is never
preempted, so there is always progress.
"""

import math
from collections import deque
from typing import Final, NamedTuple

from engine.api import Launch
from engine.kv.pool import BlockPool
from engine.kv.table import Copy
from engine.sequence import Sequence

# At so many positions attention over them costs a row as much again as all the rest of a forward.
_ATTENTION_DOUBLES: Final = 1000
# However long its context, a prompt gets this share of the rows that it would get at its start: it has to end.
_LEAST_SHARE: Final = 0.25


class Chunk(NamedTuple):
    """A part of a prompt to compute in this step."""

    sequence: Sequence
    rows: int


class Schedule(NamedTuple):
    """One step's work. All positions are reserved, those of drafts excepted."""

    decodes: list[Sequence]
    chunks: list[Chunk]
    copies: list[Copy]  # to be made in this order before anything is written
    preempted: int

    @property
    def prefill_rows(self) -> int:
        """Rows of prompts."""
        return sum(chunk.rows for chunk in self.chunks)


class Prefix(NamedTuple):
    """What is there already of a text that is about to begin."""

    blocks: list[int]
    positions: int


class Scheduler:
    """The waiting line and the running set. A sequence is in exactly one of them until it is removed."""

    def __init__(
        self, pool: BlockPool, max_running: int, max_batch_tokens: int, rows_beside_decodes: int = 0
    ) -> None:
        """rows_beside_decodes: of prompts, in a step in which others decode; 0 sets no limit."""
        self._pool = pool
        self._max_running = max_running
        self._max_batch_tokens = max_batch_tokens
        self._rows_beside_decodes = rows_beside_decodes
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @classmethod
    def of(cls, launch: Launch, pool: BlockPool) -> "Scheduler":
        """As the engine is launched."""
        return cls(pool, launch.max_running, launch.max_batch_tokens, launch.rows_beside_decodes)

    def add(self, sequence: Sequence) -> None:
        """To the end of the line. The texts of a request are added one after another."""
        self.waiting.append(sequence)

    def texts(self, request: str) -> list[Sequence]:
        """The texts of a request that wait or run."""
        return [s for s in (*self.running, *self.waiting) if s.request.id == request]

    def schedule(self) -> Schedule:
        """Admit what fits, then share the step: every decoding sequence, and prompt chunks in what rows are left."""
        self._admit()
        before = len(self.running)
        step = Schedule([], [], [], 0)
        decoding = sum(s.uncomputed == 1 for s in self.running)
        limited = decoding > 0 and self._rows_beside_decodes > 0
        left = float(max(self._max_batch_tokens - decoding, 1))
        if limited:
            left = min(left, self._rows_beside_decodes)
        at = 0
        while at < len(self.running):  # it becomes shorter where blocks run out
            sequence = self.running[at]
            at += 1
            decodes = sequence.uncomputed == 1
            price = self._price(sequence) if limited else 1.0
            rows = 1 if decodes else self._chunk(sequence, left, price)
            if rows == 0 or not self._reserve(sequence, rows, step.copies):
                continue
            if decodes:
                step.decodes.append(sequence)
            else:
                step.chunks.append(Chunk(sequence, rows))
                left -= rows * price
        return step._replace(preempted=before - len(self.running))

    @staticmethod
    def _chunk(sequence: Sequence, left: float, price: float) -> int:
        """Rows of its prompt for this step."""
        if sequence.indivisible:
            return sequence.uncomputed if left > 0 else 0
        return min(sequence.uncomputed, math.ceil(max(left, 0.0) / price))

    @staticmethod
    def _price(sequence: Sequence) -> float:
        """What a row of its prompt costs now, in rows of a text that begins."""
        return min(1 + sequence.table.committed / _ATTENTION_DOUBLES, 1 / _LEAST_SHARE)

    def grant(self, sequence: Sequence, k: int) -> int:
        """Reserve room for a draft of up to k tokens of a sequence that decodes; the length that there is room for."""
        table = sequence.table
        end = len(sequence.tokens)
        room = (len(table.blocks) + self._pool.available) * table.block_size - end
        granted = min(k, room)
        table.reserve(end + granted)
        return granted

    def remove(self, sequence: Sequence) -> None:
        """The sequence has ended: free its blocks and its place."""
        if sequence in self.running:
            self.running.remove(sequence)
            sequence.table.release()
        else:
            self.waiting.remove(sequence)

    def abandon(self) -> list[Sequence]:
        """Take out all that run, and all texts of their requests that wait, whatever state they are in. Nobody holds a
        block then.
        """
        requests = {s.request.id for s in self.running}
        abandoned = [s for s in (*self.running, *self.waiting) if s.request.id in requests]
        for sequence in (*self.running, *self.waiting):
            sequence.table.forget()
        self._pool.empty()
        self.running = []
        self.waiting = deque(s for s in self.waiting if s.request.id not in requests)
        return abandoned

    def check_integrity(self) -> None:
        """Assert that blocks add up and no sequence breaks its invariant."""
        for sequence in self.running:
            sequence.table.check()
        self._pool.check_integrity(s.table.blocks for s in self.running)
        assert not any(s.table.blocks for s in self.waiting), "a waiting sequence holds blocks"

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._max_running:
            prefix = self._prefix(self.waiting[0])
            if prefix is None or not self._fits(self.waiting[0], prefix):
                break
            sequence = self.waiting.popleft()
            sequence.begin(prefix.blocks, prefix.positions)
            self.running.append(sequence)

    def _prefix(self, sequence: Sequence) -> Prefix | None:
        """What it can begin with; None while another text of its request still computes their prompt.

        The last token is left to compute: its logits are wanted. A proposer that reads what the target computed of the
        *next* token has nothing for the last position of a hit; it would have the last block dropped here.
        """
        first = sequence.first
        if first is not None and first in self.running and not sequence.generated:
            wanted = len(sequence.tokens) - 1
            if first.table.committed < wanted:
                return None
            return Prefix(first.table.blocks[: self._pool.blocks_for(wanted)], wanted)
        if not sequence.takes_hits:
            return Prefix([], 0)
        size = self._pool.block_size
        blocks = self._pool.find(sequence.chain.leading(sequence.tokens, (len(sequence.tokens) - 1) // size))
        return Prefix(blocks, len(blocks) * size)

    def _fits(self, sequence: Sequence, prefix: Prefix) -> bool:
        """Whether all of its text so far fits, beside what the running ones need and a block more for each of them."""
        size = self._pool.block_size
        fresh = self._pool.blocks_for(len(sequence.tokens)) - prefix.positions // size
        owed = sum(s.table.missing(len(s.tokens)) + 1 for s in self.running)
        return fresh + self._pool.idle(prefix.blocks) + owed <= self._pool.available

    def _reserve(self, sequence: Sequence, rows: int, copies: list[Copy]) -> bool:
        """Make room for its next rows, preempting whoever came last. False if that was the sequence itself."""
        end = sequence.table.committed + rows
        while sequence.table.missing(end) > self._pool.available:
            last = self.running.pop()
            last.table.release()
            self.waiting.appendleft(last)
            if last is sequence:
                return False
        copy = sequence.table.reserve(end)
        if copy is not None:
            copies.append(copy)
        return True
