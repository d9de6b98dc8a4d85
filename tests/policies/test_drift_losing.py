"""Speculation that loses, by the clock."""

import numpy as np
import pytest

from policies.drift import Verdict
from policies.drift.losing import RESTED, STEPS, Arms, Losing, name_of, place_of

NOW, STALE = 100.0, 600.0


def verdict(arms: Arms) -> Verdict:
    return arms.verdict(NOW, STALE)


def feed(losing: Losing, gain: float, rounds: int, running: int = 4, seed: int = 0) -> Arms:
    """Steps of 10 ms with a tenth of noise; `gain`: tokens of those with drafts, to those without."""
    rng = np.random.default_rng(seed)
    for _ in range(rounds * STEPS):
        for drafts in (True, False):
            seconds = 0.01 * rng.normal(1, 0.1) / (gain if drafts else 1.0)
            losing.observe(running, running, seconds, drafts=drafts, t=NOW)
    return next(arms for arms in losing.all() if arms.running == name_of(place_of(running)))


def test_a_loss_of_a_quarter_is_found_within_thirty_rounds_and_ends() -> None:
    losing = Losing()
    arms = feed(losing, 0.75, 30)
    assert verdict(arms) is Verdict.BREACHED
    assert arms.drafting / arms.plain == pytest.approx(0.75, abs=0.15)
    assert verdict(feed(losing, 1.3, 20, seed=1)) is Verdict.FINE


@pytest.mark.parametrize("gain", [1.0, 1.5])
def test_drafts_that_cost_nothing_or_win_are_no_loss(gain: float) -> None:
    """For 3,000 rounds, at which a coin would have been tossed as often as in a day."""
    assert verdict(feed(Losing(), gain, 3000)) is Verdict.FINE


def test_without_both_kinds_of_steps_nothing_is_said() -> None:
    losing = Losing()
    for _ in range(1000):
        losing.observe(1, 1, 0.01, drafts=True, t=NOW)
    (arms,) = losing.all()
    assert verdict(arms) is Verdict.NO_EVIDENCE


def test_each_number_of_requests_is_on_its_own() -> None:
    losing = Losing()
    assert verdict(feed(losing, 0.75, 30, running=32)) is Verdict.BREACHED
    assert verdict(feed(losing, 1.5, 30, running=1)) is Verdict.FINE
    assert [arms.running for arms in losing.all()] == ["1", "17 to 32"]


def test_the_latest_steps_are_compared() -> None:
    """What drafts brought long before the plain steps says nothing of now."""
    losing = Losing()
    for _ in range(100):
        losing.observe(1, 9, 0.01, drafts=True, t=NOW)
    for _ in range(STEPS):
        losing.observe(1, 1, 0.01, drafts=True, t=NOW)
    for _ in range(STEPS):
        losing.observe(1, 1, 0.01, drafts=False, t=NOW)
    (arms,) = losing.all()
    assert (arms.drafting, arms.plain) == pytest.approx((100.0, 100.0))


def test_a_loss_that_nobody_sees_any_more_is_no_evidence_and_a_rest_is_its_end() -> None:
    """Where nothing runs there is nothing to say; where all runs without drafts, nothing is lost."""
    losing = Losing()
    arms = feed(losing, 0.75, 30)
    assert arms.verdict(NOW + STALE - 1, STALE) is Verdict.BREACHED
    assert arms.verdict(NOW + STALE, STALE) is Verdict.NO_EVIDENCE
    for _ in range(RESTED):
        losing.observe(4, 4, 0.01, drafts=False, t=NOW)
    assert verdict(arms) is Verdict.FINE
    assert losing.breaches == 0


def test_a_policy_that_rests_and_tries_is_never_said_to_lose() -> None:
    """Sixty trials of four rounds each, all of them lost: nothing of it is summed up over the rests."""
    losing = Losing()
    for trial in range(60):
        arms = feed(losing, 0.5, 4, seed=trial)
        assert verdict(arms) is not Verdict.BREACHED
        for _ in range(512):
            losing.observe(4, 4, 0.01, drafts=False, t=NOW)


def test_a_loss_outlives_a_restart_with_its_evidence() -> None:
    """And not another pair of models."""
    losing, again = Losing(), Losing()
    losing.serve("t", "d")
    assert verdict(feed(losing, 0.75, 30)) is Verdict.BREACHED
    feed(losing, 1.5, 2, running=1)
    again.restore(losing.saved())
    assert again.saved() == losing.saved()
    again.serve("t", "d")
    assert verdict(feed(again, 0.75, 1)) is Verdict.BREACHED
    again.serve("t2", "d")
    assert again.all() == []
    with pytest.raises(ValueError, match="no state of what speculation loses"):
        again.restore({"pair": ["t", "d"], "arms": [[0, {}]]})
