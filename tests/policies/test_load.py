"""The load policy as a state machine over running counts."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.base import LoadState
from policies.load import LoadPolicy
from policies.settings import LoadSettings

RAMP = [*range(1, 49), *range(48, 0, -1)]
RULES = LoadSettings(table=((2, 8), (8, 4), (16, 2), (32, 1)), off_above=32, resume_at=24)


def run(policy, counts):
    return [policy.step(running) for running in counts]


@st.composite
def rules(draw):
    up_to = sorted(draw(st.sets(st.integers(1, 40), min_size=1, max_size=5)))
    off_above = draw(st.integers(0, 40))
    return LoadSettings(
        table=tuple((running, draw(st.integers(0, 8))) for running in up_to),
        off_above=off_above,
        resume_at=draw(st.integers(0, off_above)),
        dwell_steps=draw(st.integers(0, 12)),
    )


def by_table(settings, running):
    return next((cap for up_to, cap in settings.table if running <= up_to), settings.table[-1][1])


def allowed_after(settings, running, cap):
    """What the rules allow at this count to a machine whose cap was `cap`."""
    return 0 if running > (settings.off_above if cap else settings.resume_at) else by_table(settings, running)


def test_a_ramp_up_and_down_passes_full_shrunk_off_and_back():
    limits = run(LoadPolicy(RULES, k_max=8), [*RAMP, *[1] * 40])
    states = [limit.state for limit in limits]
    turns = [states[0]] + [after for before, after in pairwise(states) if before != after]
    assert turns == [LoadState.FULL, LoadState.SHRUNK, LoadState.OFF, LoadState.SHRUNK, LoadState.FULL]
    assert [limit.cap for limit in limits[:48]] == [8] * 2 + [4] * 6 + [2] * 8 + [1] * 16 + [0] * 16


def test_drafting_goes_off_at_one_count_and_comes_back_at_a_lower_one():
    policy = LoadPolicy(replace(RULES, dwell_steps=0), k_max=8)
    off_at = [running for running, limit in zip(RAMP, run(policy, RAMP), strict=True) if limit.cap == 0]
    assert (off_at[0], off_at[-1]) == (33, 25)


def test_a_load_that_swings_around_the_threshold_does_not_switch_drafting_on_and_off():
    limits = run(LoadPolicy(RULES, k_max=8), [33, 31] * 200)
    assert {limit.state for limit in limits} == {LoadState.OFF}


@given(rules(), st.lists(st.integers(0, 48), max_size=120))
def test_tightening_is_immediate(settings, counts):
    for running, limit in zip(counts, run(LoadPolicy(settings, k_max=8), counts), strict=True):
        assert limit.cap <= by_table(settings, running)
        assert limit.cap == 0 or running <= settings.off_above


@given(rules(), st.lists(st.integers(0, 48), max_size=120))
def test_a_looser_cap_was_allowed_by_every_step_of_a_whole_dwell(settings, counts):
    """So two loosenings, or a tightening and a loosening, are never closer than the dwell."""
    caps = [limit.cap for limit in run(LoadPolicy(settings, k_max=8), counts)]
    changes = [step for step in range(1, len(caps)) if caps[step] != caps[step - 1]]
    dwell = max(settings.dwell_steps, 1)
    for step in changes:
        if caps[step] > caps[step - 1]:
            waited = range(step - dwell + 1, step + 1)
            assert all(allowed_after(settings, counts[at], caps[step - 1]) >= caps[step] for at in waited)
            assert all(other <= step - dwell for other in changes if other < step)


def test_a_dwell_that_is_interrupted_starts_again():
    policy = LoadPolicy(replace(RULES, table=((2, 8), (8, 4)), dwell_steps=3), k_max=8)
    caps = [limit.cap for limit in run(policy, [5, 1, 1, 5, 1, 1, 1])]
    assert caps == [4, 4, 4, 4, 4, 4, 8]


def test_a_dwell_grants_no_more_than_its_busiest_step_allowed():
    policy = LoadPolicy(replace(RULES, table=((2, 8), (8, 4), (16, 2)), dwell_steps=3), k_max=8)
    limits = run(policy, [16, 8, 1, 1, 1])
    assert [limit.cap for limit in limits] == [2, 2, 2, 4, 4]
    assert limits[3].text == "load cap: held for 3 more steps"


@given(rules(), st.integers(0, 48))
def test_a_steady_load_ends_at_what_the_rules_allow(settings, running):
    policy = LoadPolicy(settings, k_max=8)
    last = run(policy, [running] * (2 * settings.dwell_steps + 2))[-1]
    assert last.cap == allowed_after(settings, running, last.cap)


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ([1], "load cap: 1 running <= 2"),
        ([17], "load cap: 17 running > 16"),
        ([33], "load off: 33 running > 32"),
        ([33, 25], "load off: 25 running > 24, where drafting resumes"),
        ([33, 24], "load off: held for 15 more steps"),
        ([17, 1, 1], "load cap: held for 14 more steps"),
    ],
)
def test_the_text_says_which_count_met_which_bound(counts, text):
    assert run(LoadPolicy(RULES, k_max=8), counts)[-1].text == text


def test_a_table_that_ends_in_0_switches_drafting_off_by_itself():
    settings = LoadSettings(table=((4, 4), (8, 0)), off_above=32, resume_at=2)
    limits = run(LoadPolicy(settings, k_max=4), [4, 5])
    assert [limit.state for limit in limits] == [LoadState.FULL, LoadState.OFF]
    assert limits[-1].text == "load off: 5 running > 4"


def test_new_rules_tighten_at_the_next_step_and_loosen_after_a_dwell():
    policy = LoadPolicy(RULES, k_max=8)
    run(policy, [1])
    policy.configure(replace(RULES, table=((48, 2),), dwell_steps=3), k_max=8)
    assert policy.step(1).cap == 2
    policy.configure(replace(RULES, table=((48, 6),), dwell_steps=3), k_max=8)
    assert [limit.cap for limit in run(policy, [1] * 3)] == [2, 2, 6]
