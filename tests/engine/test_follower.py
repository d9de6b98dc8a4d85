"""Whatever a follower says is there of a draft's keys is there, and was computed for this very text."""

from random import Random

from hypothesis import settings

from engine.draft.follower import Follower
from engine.sequence import Sequence
from tests.engine.conftest import request
from tests.engine.desk import Desk
from tests.engine.test_kv_machine import BLOCKS, SIZE, AnyOrder


class FollowedDesk(Desk):
    """A desk whose draft keeps keys of its own, and is asked in some steps only.

    Its memory notes for each slot the whole text that the key stands for: nobody copies, clears or moves it.
    """

    def __init__(self, blocks: int, block_size: int, max_running: int, rows: int, seed: int = 0) -> None:
        super().__init__(blocks, block_size, max_running, rows, seed)
        self.follower = Follower(block_size)
        self.kept = self.resumed = self.gaps = 0
        self._keys: dict[int, tuple[int, ...]] = {}
        self._guessed: dict[str, int] = {}

    def check(self) -> None:
        super().check()
        self._check_keys(self.scheduler.running)

    def _check_keys(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            start = self.follower.start(sequence)
            assert start <= len(sequence.tokens)
            for position, slot in enumerate(sequence.table.slots(0, start)):
                assert self._keys[slot] == tuple(sequence.tokens[: position + 1]), (
                    f"{sequence.id} {position=}"
                )

    def _draft(self, sequence: Sequence) -> list[int]:
        guesses = super()._draft(sequence)
        if not guesses or self.random.random() < 0.3:
            self.gaps += 1
            return guesses
        self._check_keys([sequence])
        length = len(sequence.tokens)
        start = min(self.follower.start(sequence), length - 1)
        guessed = self._guessed.pop(sequence.id, length)
        self.kept += start > guessed
        self.resumed += guessed == length and start > 0
        self.follower.write(sequence, start, length + len(guesses))
        end = length + len(guesses) - 1
        if self.random.random() < 0.2:  # caught up with in part
            end = self.random.randint(start, length - 1)
        text = (*sequence.tokens, *guesses)
        for position in range(start, end):
            self._keys[sequence.table.slot(position)] = text[: position + 1]
        self.follower.reached(sequence, end, guesses)
        if end > length:
            self._guessed[sequence.id] = length
        return guesses


class AnyOrderFollowed(AnyOrder):
    """The same events as for the pool: forks, hits, copies, preemptions, roll-backs, ends."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = FollowedDesk(BLOCKS, SIZE, max_running=4, rows=8)


TestAnyOrderFollowed = AnyOrderFollowed.TestCase
TestAnyOrderFollowed.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_two_thousand_requests_find_nothing_stale() -> None:
    """All of it must have happened: guesses kept, texts resumed in blocks of others, steps without drafts."""
    random = Random(2)
    desk = FollowedDesk(blocks=12, block_size=4, max_running=8, rows=24)
    while desk.requests < 2000 or desk.busy:
        while desk.requests < 2000 and len(desk.scheduler.waiting) < 8:
            prompt = [random.randrange(2) for _ in range(random.choice((1, 4, 8, 13, 20)))]
            desk.submit(prompt, random.randint(1, 16), random.choice((1, 1, 1, 3)))
        if desk.busy:
            desk.step()
    assert min(desk.kept, desk.resumed, desk.gaps) > 300
    assert min(desk.preempted, desk.hits, desk.copies) > 100


def test_accepted_guesses_are_kept_and_rejected_ones_are_not() -> None:
    desk = Desk(blocks=9, block_size=3, max_running=1, rows=64)
    follower = Follower(3)
    sequence = Sequence(request("a", [1, 2, 3, 4, 5], max_tokens=20), desk.pool, None)
    sequence.table.reserve(14)
    sequence.table.commit(4)
    sequence.table.reserve(14)
    assert follower.start(sequence) == 0
    follower.write(sequence, 0, 12)
    follower.reached(sequence, 11, [6, 7, 8, 9, 10, 11, 12])  # the last one was drawn, but has no key
    assert follower.start(sequence) == 5
    sequence.extend([6, 7, 8, 9])
    sequence.commit(8)
    assert follower.start(sequence) == 9
    sequence.table.reserve(10)
    sequence.extend([0])
    sequence.commit(9)
    assert follower.start(sequence) == 9


def test_what_is_forgotten_of_some_blocks_is_read_anew_from_the_first_of_them_on() -> None:
    desk = Desk(blocks=9, block_size=3, max_running=1, rows=64)
    follower = Follower(3)
    sequence = Sequence(request("a", list(range(13)), max_tokens=20), desk.pool, None)
    sequence.table.reserve(14)
    follower.reached(sequence, 13)
    assert follower.start(sequence) == 13
    follower.forget(sequence.table.blocks[2:])
    assert follower.start(sequence) == 6
