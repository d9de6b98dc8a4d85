"""Speculation that loses, by the clock."""

import numpy as np
import pytest

from policies.drift import Verdict
from policies.drift.losing import STEPS, Arms, Losing, name_of, place_of


def feed(losing: Losing, gain: float, rounds: int, running: int = 4, seed: int = 0) -> Arms:
    """Steps of 10 ms with a tenth of noise; `gain`: tokens of those with drafts, to those without."""
    rng = np.random.default_rng(seed)
    for _ in range(rounds * STEPS):
        for drafts in (True, False):
            seconds = 0.01 * rng.normal(1, 0.1) / (gain if drafts else 1.0)
            losing.observe(running, running, seconds, drafts=drafts)
    return next(arms for arms in losing.all() if arms.running == name_of(place_of(running)))


def test_a_loss_of_a_quarter_is_found_within_thirty_rounds_and_ends() -> None:
    losing = Losing()
    arms = feed(losing, 0.75, 30)
    assert arms.verdict is Verdict.BREACHED
    assert arms.drafting / arms.plain == pytest.approx(0.75, abs=0.15)
    assert feed(losing, 1.3, 20, seed=1).verdict is Verdict.FINE


@pytest.mark.parametrize("gain", [1.0, 1.5])
def test_drafts_that_cost_nothing_or_win_are_no_loss(gain: float) -> None:
    """For 3,000 rounds, at which a coin would have been tossed as often as in a day."""
    assert feed(Losing(), gain, 3000).verdict is Verdict.FINE


def test_without_both_kinds_of_steps_nothing_is_said() -> None:
    losing = Losing()
    for _ in range(1000):
        losing.observe(1, 1, 0.01, drafts=True)
    (arms,) = losing.all()
    assert arms.verdict is Verdict.NO_EVIDENCE


def test_each_number_of_requests_is_on_its_own() -> None:
    losing = Losing()
    assert feed(losing, 0.75, 30, running=32).verdict is Verdict.BREACHED
    assert feed(losing, 1.5, 30, running=1).verdict is Verdict.FINE
    assert [arms.running for arms in losing.all()] == ["1", "17 to 32"]


def test_the_latest_steps_are_compared() -> None:
    """What drafts brought long before the plain steps says nothing of now."""
    losing = Losing()
    for _ in range(100):
        losing.observe(1, 9, 0.01, drafts=True)
    for _ in range(STEPS):
        losing.observe(1, 1, 0.01, drafts=True)
    for _ in range(STEPS):
        losing.observe(1, 1, 0.01, drafts=False)
    (arms,) = losing.all()
    assert (arms.drafting, arms.plain) == pytest.approx((100.0, 100.0))
