"""The pure decisions around the engine: when a place comes free, when a dead engine is started again."""

import pytest

from specd.flights import retry_after
from specd.restarts import Death, Patience


@pytest.mark.parametrize(
    ("finished", "oldest", "now", "seconds"),
    [
        ([90.0, 92.0, 94.0, 96.0, 98.0], 80.0, 100.0, 2),  # one every 2 s
        ([99.9, 99.95], 0.0, 100.0, 1),  # quick, but never under a second
        ([10.0], 0.0, 100.0, 90),  # nothing has ended for long: the open gap counts
        ([], 70.0, 100.0, 30),  # nothing ever ended: as long as the oldest is here
        ([], 0.0, 10_000.0, 120),  # nobody is sent away for longer than this
    ],
)
def test_retry_after_follows_recent_completions(finished, oldest, now, seconds):
    """Test that a refused client is told the mean gap between completions."""
    assert retry_after(finished, oldest, now) == seconds


def test_delays_double_up_to_a_limit():
    """Test the backoff of restarts, also of an engine that has been failing for days."""
    patience = Patience(first_delay=0.5, longest_delay=3.0)
    assert [patience.delay(failures) for failures in (1, 2, 3, 4, 5000)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize(("ready_seconds", "failures"), [(None, 4), (59.0, 4), (60.0, 1)])
def test_an_engine_that_ran_well_starts_a_new_count(ready_seconds, failures):
    """Test that only deaths in a row count."""
    assert Patience(healthy_seconds=60).count(3, Death("crash", "signal 9", ready_seconds)) == failures
