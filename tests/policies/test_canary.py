"""The comparison of two replays: its power, its false alarms, and when it says nothing."""

import math

import numpy as np
import pytest

from benchmarks.drift_canary import CANARY, CONFIDENCE, DRAFTED, TOLERANCE, judged, replays, verdicts
from policies.canary import CanaryVerdict, Counts, by_position, compare


def test_a_drop_of_a_twentieth_is_found():
    """Test that with 1,920 drafted tokens a drop of 0.05 is found in two of three comparisons even where no rounds come
    out alike."""
    assert DRAFTED <= 2000
    assert verdicts(0.05, 0.0, 200).count(CanaryVerdict.BAD) >= 133


@pytest.mark.parametrize("case", [case for case in CANARY if case.bound], ids=lambda case: case.name)
def test_the_bounds_of_the_benchmark(case):
    """Test that what `make bench-drift` prints of the canary keeps to its bounds."""
    assert judged(case, 200).met


def test_a_rise_is_no_drop():
    """Test that a draft that has become better is never called worse."""
    assert verdicts(-0.05, 0.5, 200).count(CanaryVerdict.BAD) == 0


def test_the_interval_covers_the_change():
    """Test that the interval holds the true change as often as it promises, within what 300 runs can tell."""
    rng = np.random.default_rng(6)
    found = [compare(*replays(rng, 0.6, 0.1, 0.3), confidence=0.9, tolerance=0.02) for _ in range(300)]
    true = np.mean([each.change for each in found])
    held = sum(each.low <= true <= each.high for each in found)
    assert 0.85 <= held / 300 <= 0.95


def test_the_same_replay_twice():
    """Test that what is the same is fine, with no change at all."""
    replay, _ = replays(np.random.default_rng(1), 0.6, 0.0, 0.0)
    found = compare(replay, replay, confidence=CONFIDENCE, tolerance=TOLERANCE)
    assert (found.verdict, found.change, found.low, found.high) == (CanaryVerdict.FINE, 0.0, 0.0, 0.0)


def test_a_fall_that_is_certain_but_tiny_is_fine():
    """Test that what is below the tolerance is no alarm, however sure it is."""
    before = [Counts((1000,), (600,))] * 20
    after = [Counts((1000,), (590,))] * 20
    assert compare(before, after, confidence=0.99, tolerance=0.02).verdict is CanaryVerdict.FINE
    assert compare(before, after, confidence=0.99, tolerance=0.005).verdict is CanaryVerdict.BAD


@pytest.mark.parametrize(
    ("was", "now", "prompts", "words"),
    [
        (60, 30, 20, "canary: acceptance of eagle fell: 0.600 to 0.300"),
        (60, 59, 20, "canary: acceptance of eagle fell by no more than tolerance or chance: 0.600 to 0.590"),
        (60, 60, 20, "canary: acceptance of eagle did not fall: 0.600 to 0.600"),
        (60, 70, 20, "canary: acceptance of eagle did not fall: 0.600 to 0.700"),
        (
            60,
            30,
            7,
            "canary: nothing can be said of acceptance of eagle: 700 drafted tokens of 7 prompts were examined",
        ),
    ],
)
def test_what_is_told_says_no_more_than_is_known(was, now, prompts, words):
    """Test that a lower figure is never said not to have fallen, and that of too few prompts no figure is told."""
    before, after = ([Counts((100,), (accepted,))] * prompts for accepted in (was, now))
    found = compare(before, after, confidence=0.99, tolerance=0.02)
    assert found.summary("of eagle") == words
    assert found.description("of eagle").startswith(words)
    assert "nan" not in found.description("of eagle")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], []),
        ([Counts((100,), (60,))] * 7, [Counts((100,), (0,))] * 7),
        ([Counts((20,), (12,))] * 9, [Counts((20,), (0,))] * 9),
        ([Counts((100,), (60,))] * 9, [Counts((), ())] * 9),
    ],
    ids=["nothing", "few prompts", "few tokens", "drafting off"],
)
def test_too_little_is_no_evidence(before, after):
    """Test that nothing is said of too few prompts or tokens, and that drafting off is no fall."""
    found = compare(before, after, confidence=0.95, tolerance=0.02)
    assert found.verdict is CanaryVerdict.NO_EVIDENCE
    assert math.isnan(found.p_value)


def test_acceptance_by_position():
    """Test that each position is a rate of its own, NaN where it was never reached."""
    assert by_position([Counts((4, 2), (2, 1)), Counts((4,), (4,))]) == (0.75, 0.5)
    assert math.isnan(by_position([Counts((0,), (0,))])[0])
