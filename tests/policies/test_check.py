"""The check after a switch: drafting that is slower is noticed, and drafting that is not is left alone."""

from dataclasses import replace

import numpy as np

from policies.base import Drafting
from policies.check import LOOK_EVERY, Check, Verdict
from tests.policies.steps import A_STEP

DRAFTED = (Drafting("eagle", 0.001, 4, 2, 8),)


class World:
    """Steps of four, in which drafts bring `gain` times as many tokens a second as plain steps, with noise."""

    def __init__(self, gain, seed=1, noise=0.1):
        self.check, self.gain, self.noise = Check(), gain, noise
        self.rng = np.random.default_rng(seed)

    def step(self, slow=1.0):
        verdict = self.check.verdict(4)
        drafted = verdict is Verdict.DRAFT
        committed = 4 + int(self.rng.binomial(4, 0.5)) if drafted else 4
        seconds = (
            slow * np.exp(self.noise * self.rng.standard_normal()) * (1.5 / self.gain if drafted else 1.0)
        )
        step = replace(
            A_STEP, sequences=4, committed=committed, seconds=seconds, drafting=DRAFTED if drafted else ()
        )
        self.check.observe(step, step.seconds, 1.0, drafted=drafted)
        return verdict

    def run(self, steps):
        return [self.step() for _ in range(steps)]


def test_drafting_that_is_slower_ends_and_is_tried_again_ever_more_seldom():
    world = World(0.85)
    verdicts = world.run(20_000)
    assert verdicts[: LOOK_EVERY * 8].count(Verdict.REST) > 0
    assert verdicts[-10_000:].count(Verdict.DRAFT) < 200
    assert world.check.text(4).startswith("measured: with about 4 decoding drafts bring 0.8")


def test_drafting_that_is_as_fast_or_faster_is_left_alone():
    """Over 20 000 steps each, looks and trials cost one in fifty."""
    for gain, seed in ((1.0, 1), (1.0, 2), (1.05, 3), (1.5, 4)):
        verdicts = World(gain, seed).run(20_000)
        assert verdicts.count(Verdict.REST) <= 512 * (gain == 1.0)
        assert verdicts.count(Verdict.LOOK) < 400


def test_a_machine_that_becomes_slower_is_not_held_against_drafts():
    """Test that only neighbouring steps are compared: all become half as fast, and drafts keep their gain."""
    world = World(1.3)
    world.run(1000)
    verdicts = [world.step(slow=2.0) for _ in range(2000)]
    assert Verdict.REST not in verdicts


def test_drafting_that_became_better_comes_back():
    world = World(0.8)
    world.run(3000)
    world.gain = 1.5
    verdicts = world.run(6000)
    assert verdicts[-1000:].count(Verdict.REST) == 0


def test_loads_are_judged_apart():
    world = World(0.8)
    world.run(3000)
    assert world.check.verdict(4) is Verdict.REST
    assert world.check.verdict(16) is Verdict.DRAFT


def test_steps_with_prompts_teach_nothing():
    check = Check()
    for _ in range(LOOK_EVERY + 10):
        check.observe(replace(A_STEP, prefill_rows=8, drafting=DRAFTED), 0.01, 0.02, drafted=True)
    assert check.verdict(1) is Verdict.DRAFT
