"""Which instance gets a request, without any: the load policy beside arrivals and time."""

import pytest

from policies.settings import LoadSettings, PolicySettings
from specd.router.choice import STEP, LoadWatch, choose, never_reached, settings_for


def watch(draft: int | None = None, **load: object) -> LoadWatch:
    return LoadWatch(settings_for(PolicySettings(load=LoadSettings(**load)), draft), 0.0)


def test_drafting_ends_at_once_and_comes_back_after_a_dwell_of_time():
    """Test that an arrival above the limit is not drafted for, and that after the load has fallen it takes as many
    steps of time as the policy dwells, with arrivals or without.
    """
    load = watch(off_above=2, resume_at=1, dwell_steps=10)
    load.arrived(0.0, 2, 0)
    assert load.drafts
    load.arrived(0.0, 3, 0)
    assert not load.drafts
    load.passed(1.0, 1, 0)
    load.arrived(1.0 + 8 * STEP, 1, 0)
    assert not load.drafts
    load.arrived(1.0 + 30 * STEP, 1, 0)
    assert load.drafts


def test_what_ran_in_between_counts_and_not_what_runs_now():
    """Test that a long time under load does not pass for a dwell."""
    load = watch(off_above=2, resume_at=1, dwell_steps=10)
    load.arrived(0.0, 3, 0)
    load.arrived(1000.0, 1, 0)
    assert not load.drafts


def test_time_that_is_made_up_for_has_an_end():
    """Test that a night without a request costs no step for each twentieth of a second of it."""
    load = watch(dwell_steps=10**9)
    load.passed(10.0**9, 1, 0)
    assert load.drafts


@pytest.mark.parametrize(
    ("draft", "running", "drafts"),
    [(None, 12, True), (None, 13, False), (8, 2, True), (8, 3, False), (3, 8, True), (3, 9, False)],
)
def test_an_instance_with_long_drafts_gets_fewer_requests(draft, running, drafts):
    """Test that the caps by hand hold where none are configured, each for drafts that are as long."""
    load = watch(draft)
    load.arrived(0.0, running, 0)
    assert load.drafts is drafts


def test_a_table_that_never_allows_the_draft_is_found():
    """Test the sentence, and that nothing is wrong where one cap is large enough."""
    settings = PolicySettings(load=LoadSettings(table=((4, 6), (8, 2))))
    assert "the largest is 6" in never_reached(settings_for(settings, 7))
    assert never_reached(settings_for(settings, 6)) is None
    assert never_reached(settings_for(settings, None)) is None


@pytest.mark.parametrize(
    ("running", "declined", "down", "order", "reason"),
    [
        (1, False, set(), ("speculating", "plain"), "drafts"),
        (99, False, set(), ("plain", "speculating"), "load"),
        (1, True, set(), ("plain", "speculating"), "asked"),
        (1, False, {"speculating"}, ("plain",), "only_one"),
        (99, False, {"plain"}, ("speculating",), "only_one"),
        (1, False, {"plain"}, ("speculating",), "drafts"),
        (1, False, {"plain", "speculating"}, (), "none"),
    ],
)
def test_who_is_asked_and_why(running, declined, down, order, reason):
    """Test that the wish goes before the load, and that who is down is not asked."""
    load = watch()
    load.arrived(0.0, running, 0)
    choice = choose(load, down, declined=declined)
    assert (choice.order, choice.reason) == (order, reason)
