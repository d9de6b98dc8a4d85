"""Who runs in the next step. First come, first served."""

from collections import deque
from typing import NamedTuple

from engine.kv.pool import BlockPool
from engine.sequence import Sequence


class Chunk(NamedTuple):
    """A part of a prompt to compute in this step."""

    sequence: Sequence
    rows: int


class Schedule(NamedTuple):
    """One step's work."""

    decodes: list[Sequence]
    chunks: list[Chunk]


class Scheduler:
    """The waiting line and the running set. A sequence is in exactly one of them until it is removed."""

    def __init__(self, pool: BlockPool, max_running: int, max_batch_tokens: int) -> None:
        self._pool = pool
        self._max_running = max_running
        self._max_batch_tokens = max_batch_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """To the end of the line."""
        self.waiting.append(sequence)

    def find(self, request: str) -> Sequence | None:
        """A waiting or running sequence."""
        return next((s for s in (*self.running, *self.waiting) if s.id == request), None)

    def schedule(self) -> Schedule:
        """Admit what fits, then share the step: every decoding sequence, and prompt chunks in what rows are left."""
        self._admit()
        decodes = [s for s in self.running if s.uncomputed == 1]
        left = max(self._max_batch_tokens - len(decodes), 1)
        chunks = []
        for sequence in self.running:
            if sequence.uncomputed > 1 and left > 0:
                rows = min(sequence.uncomputed, left)
                chunks.append(Chunk(sequence, rows))
                left -= rows
        return Schedule(decodes, chunks)

    def remove(self, sequence: Sequence) -> None:
        """The sequence has ended: free its blocks and its place."""
        if sequence in self.running:
            self.running.remove(sequence)
            sequence.table.release()
            self._pool.withdraw(self._blocks(sequence))
        else:
            self.waiting.remove(sequence)

    def check_integrity(self) -> None:
        """Assert that blocks and promises add up and no sequence breaks its invariant."""
        for sequence in self.running:
            sequence.table.check()
        self._pool.check_integrity(s.table.blocks for s in self.running)
        promised = sum(self._blocks(s) for s in self.running)
        assert self._pool.promised == promised, (
            f"{self._pool.promised=} but the running sequences add up to {promised}"
        )
        assert not any(s.table.blocks for s in self.waiting), "a waiting sequence holds blocks"

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._max_running:
            if not self._pool.promise(self._blocks(self.waiting[0])):
                break
            self.running.append(self.waiting.popleft())

    def _blocks(self, sequence: Sequence) -> int:
        return self._pool.blocks_for(sequence.worst_case())
