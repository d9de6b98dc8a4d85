"""Whatever happens in whatever order, no block is lost, held twice, or read by a text that it does not belong to."""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.engine.desk import Desk

PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=14)
BLOCKS, SIZE = 9, 3
LONGEST = BLOCKS * SIZE


class AnyOrder(RuleBasedStateMachine):
    """Submit, fork, step, roll back, preempt, cancel and finish over a pool that holds about three texts."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(BLOCKS, SIZE, max_running=4, rows=8)

    @rule(prompt=PROMPTS, tokens=st.integers(1, 13), n=st.sampled_from([1, 1, 2, 4]))
    def submit(self, prompt: list[int], tokens: int, n: int) -> None:
        self.desk.submit(prompt, min(tokens, LONGEST + 1 - len(prompt)), n)

    @precondition(lambda self: self.desk.busy)
    @rule(seed=st.integers(0, 9), steps=st.integers(1, 6))
    def step(self, seed: int, steps: int) -> None:
        self.desk.random.seed(seed)
        for _ in range(steps):
            if self.desk.busy:
                self.desk.step()
                self.desk.check()

    @precondition(lambda self: self.desk.busy)
    @rule(which=st.floats(0, 0.99))
    def cancel(self, which: float) -> None:
        found = self.desk.open
        self.desk.cancel(found[int(which * len(found))])

    @invariant()
    def nothing_is_lost(self) -> None:
        self.desk.check()

    def teardown(self) -> None:
        for _ in range(2000):
            if not self.desk.busy:
                break
            self.desk.step()
        assert not self.desk.busy, "livelock"
        self.desk.check()
        assert self.desk.pool.used == 0


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)


def test_ten_thousand_requests_with_cancels_at_random_moments_leave_no_block_behind() -> None:
    """Prompts with common beginnings, forks and a pool that is too small: all of it must have happened."""
    random = Random(1)
    desk = Desk(blocks=12, block_size=4, max_running=8, rows=24)
    cancelled = 0
    while desk.requests < 10_000 or desk.busy:
        while desk.requests < 10_000 and len(desk.scheduler.waiting) < 8:
            prompt = [random.randrange(2) for _ in range(random.choice((1, 4, 8, 13, 20)))]
            desk.submit(prompt, random.randint(1, 16), random.choice((1, 1, 1, 3)))
        if random.random() < 0.1:
            desk.cancel(random.choice(desk.open))
            cancelled += 1
        if desk.busy:
            desk.step()
        if random.random() < 0.02:
            desk.check()
    desk.check()
    assert desk.pool.used == 0
    assert cancelled > 500
    assert min(desk.preempted, desk.hits, desk.copies) > 500
