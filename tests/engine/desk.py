"""Scheduler, pool and tables as the engine uses them, without a model.

The memory notes for each slot which text its content stands for, so a sequence that would read what is not its own is
caught at once. The model is a random number generator: it drafts, rejects and ends texts as it likes.
"""

from random import Random

from engine.api import Request, SamplingParams
from engine.kv.pool import BlockPool
from engine.scheduler import Scheduler
from engine.sequence import Sequence


class Desk:
    def __init__(self, blocks: int, block_size: int, max_running: int, rows: int, seed: int = 0) -> None:
        self.pool = BlockPool(blocks, block_size, caching=True)
        self.scheduler = Scheduler(self.pool, max_running, rows)
        self.random = Random(seed)
        self.requests = self.preempted = self.hits = self.copies = 0
        self.finished: dict[str, int] = {}
        self._arrivals: dict[str, int] = {}
        self._memory: dict[int, int] = {}
        self._marks: dict[str, list[int]] = {}

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    @property
    def open(self) -> list[str]:
        """Requests with a text that waits or runs."""
        return sorted({s.request.id for s in (*self.scheduler.running, *self.scheduler.waiting)})

    def submit(self, prompt: list[int], max_tokens: int, n: int = 1) -> None:
        self.requests += 1
        sampling = SamplingParams(max_tokens=max_tokens)
        request = Request(id=str(self.requests), prompt=prompt, sampling=sampling, n=n)
        first = None
        for index in range(n):
            sequence = Sequence(request, self.pool, None, first=first, index=index)
            first = first or sequence
            self._arrivals[sequence.id] = len(self._arrivals)
            self.scheduler.add(sequence)

    def cancel(self, request: str) -> None:
        for sequence in self.scheduler.texts(request):
            self.scheduler.remove(sequence)

    def step(self) -> None:
        schedule = self.scheduler.schedule()
        self.preempted += schedule.preempted
        self.copies += len(schedule.copies)
        for source, target in schedule.copies:
            self._copy(source, target)
        drafts = [self._draft(sequence) for sequence in schedule.decodes]
        spans = [(s, s.tokens[-1:] + draft) for s, draft in zip(schedule.decodes, drafts, strict=True)]
        for sequence, rows in schedule.chunks:
            start = sequence.table.committed
            spans.append((sequence, sequence.tokens[start : start + rows]))
        assert self.scheduler.running[0] in [s for s, _ in spans], "who came first must progress"
        self._write(spans)
        for sequence, draft in zip(schedule.decodes, drafts, strict=True):
            self._continue(sequence, draft[: self.random.randint(0, len(draft))])
        for sequence, rows in schedule.chunks:
            sequence.commit(sequence.table.committed + rows)
            if not sequence.uncomputed:
                self._continue(sequence, [])

    def check(self) -> None:
        self.scheduler.check_integrity()
        order = [self._arrivals[s.id] for s in (*self.scheduler.running, *self.scheduler.waiting)]
        assert order == sorted(order), "first come, first served"

    def _draft(self, sequence: Sequence) -> list[int]:
        wanted = self.random.randrange(min(6, sequence.remaining))
        granted = self.scheduler.grant(sequence, wanted)
        assert granted <= wanted
        return [self.random.randrange(2) for _ in range(granted)]

    def _continue(self, sequence: Sequence, accepted: list[int]) -> None:
        sequence.extend([*accepted, self.random.randrange(2)])
        sequence.commit(len(sequence.tokens) - 1)
        if not sequence.remaining or self.random.random() < 0.02:
            self.finished[sequence.id] = sequence.generated
            self.scheduler.remove(sequence)
            self.hits += sequence.cached_tokens > 0

    def _copy(self, source: int, target: int) -> None:
        size = self.pool.block_size
        for offset in range(size):
            self._memory[target * size + offset] = self._memory.get(source * size + offset, 0)

    def _write(self, spans: list[tuple[Sequence, list[int]]]) -> None:
        """All rows are written before anything is read, as in a forward."""
        for sequence, tokens in spans:
            start = sequence.table.committed
            mark = self._mark(sequence, start)
            for slot, token in zip(sequence.table.slots(start, start + len(tokens)), tokens, strict=True):
                mark = hash((mark, token))
                self._memory[slot] = mark
        for sequence, _ in spans:
            start = sequence.table.committed
            self._mark(sequence, start)
            read = [self._memory[slot] for slot in sequence.table.slots(0, start)]
            assert read == self._marks[sequence.id][1 : start + 1], f"{sequence.id} reads what is not its own"

    def _mark(self, sequence: Sequence, positions: int) -> int:
        """What stands for the first `positions` tokens of a text."""
        marks = self._marks.setdefault(sequence.id, [0])
        while len(marks) <= positions:
            marks.append(hash((marks[-1], sequence.tokens[len(marks) - 1])))
        return marks[positions]
