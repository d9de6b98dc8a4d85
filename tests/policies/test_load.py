"""The load policy as a state machine over the load."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.base import LoadState, LoadView
from policies.load import LoadPolicy, LoadRules, rules_of, unshrunk_up_to
from policies.settings import LoadSettings, PolicySettings

RAMP = [*range(1, 49), *range(48, 0, -1)]
RULES = LoadSettings(table=((2, 8), (8, 4), (16, 2), (32, 1)), off_above=32, resume_at=24)


def under(load, k_max=8, **settings):
    return PolicySettings(load=load, k_max=k_max, **settings)


def idle(running, **rest):
    """A load in which nobody waits and all blocks are free, but for what is named."""
    return LoadView(**{"running": running, "waiting": 0, "kv_free": 1.0, **rest})


def run(policy, counts):
    return [policy.step(idle(running)) for running in counts]


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
    limits = run(LoadPolicy(under(RULES)), [*RAMP, *[1] * 40])
    states = [limit.state for limit in limits]
    turns = [states[0]] + [after for before, after in pairwise(states) if before != after]
    assert turns == [LoadState.FULL, LoadState.SHRUNK, LoadState.OFF, LoadState.SHRUNK, LoadState.FULL]
    assert [limit.cap for limit in limits[:48]] == [8] * 2 + [4] * 6 + [2] * 8 + [1] * 16 + [0] * 16


def test_drafting_goes_off_at_one_count_and_comes_back_at_a_lower_one():
    policy = LoadPolicy(under(replace(RULES, dwell_steps=0)))
    off_at = [running for running, limit in zip(RAMP, run(policy, RAMP), strict=True) if limit.cap == 0]
    assert (off_at[0], off_at[-1]) == (33, 25)


def test_a_load_that_swings_around_the_threshold_does_not_switch_drafting_on_and_off():
    limits = run(LoadPolicy(under(RULES)), [33, 31] * 200)
    assert {limit.state for limit in limits} == {LoadState.OFF}


@given(rules(), st.lists(st.integers(0, 48), max_size=120))
def test_tightening_is_immediate(settings, counts):
    for running, limit in zip(counts, run(LoadPolicy(under(settings)), counts), strict=True):
        assert limit.cap <= by_table(settings, running)
        assert limit.cap == 0 or running <= settings.off_above


@given(rules(), st.lists(st.integers(0, 48), max_size=120))
def test_a_looser_cap_was_allowed_by_every_step_of_a_whole_dwell(settings, counts):
    """So two loosenings, or a tightening and a loosening, are never closer than the dwell."""
    caps = [limit.cap for limit in run(LoadPolicy(under(settings)), counts)]
    changes = [step for step in range(1, len(caps)) if caps[step] != caps[step - 1]]
    dwell = max(settings.dwell_steps, 1)
    for step in changes:
        if caps[step] > caps[step - 1]:
            waited = range(step - dwell + 1, step + 1)
            assert all(allowed_after(settings, counts[at], caps[step - 1]) >= caps[step] for at in waited)
            assert all(other <= step - dwell for other in changes if other < step)


def test_a_dwell_that_is_interrupted_starts_again():
    policy = LoadPolicy(under(replace(RULES, table=((2, 8), (8, 4)), dwell_steps=3)))
    caps = [limit.cap for limit in run(policy, [5, 1, 1, 5, 1, 1, 1])]
    assert caps == [4, 4, 4, 4, 4, 4, 8]


def test_a_dwell_grants_no_more_than_its_busiest_step_allowed():
    policy = LoadPolicy(under(replace(RULES, table=((2, 8), (8, 4), (16, 2)), dwell_steps=3)))
    limits = run(policy, [16, 8, 1, 1, 1])
    assert [limit.cap for limit in limits] == [2, 2, 2, 4, 4]
    assert limits[3].text == "load cap: held for 3 more steps"


@given(rules(), st.integers(0, 48))
def test_a_steady_load_ends_at_what_the_rules_allow(settings, running):
    policy = LoadPolicy(under(settings))
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
    assert run(LoadPolicy(under(RULES)), counts)[-1].text == text


def test_a_table_that_ends_in_0_switches_drafting_off_by_itself():
    settings = LoadSettings(table=((4, 4), (8, 0)), off_above=32, resume_at=2)
    limits = run(LoadPolicy(under(settings, k_max=4)), [4, 5])
    assert [limit.state for limit in limits] == [LoadState.FULL, LoadState.OFF]
    assert limits[-1].text == "load off: 5 running > 4"


def test_new_rules_tighten_at_the_next_step_and_loosen_after_a_dwell():
    policy = LoadPolicy(under(RULES))
    run(policy, [1])
    policy.configure(under(replace(RULES, table=((48, 2),), dwell_steps=3)))
    assert policy.step(idle(1)).cap == 2
    policy.configure(under(replace(RULES, table=((48, 6),), dwell_steps=3)))
    assert [limit.cap for limit in run(policy, [1] * 3)] == [2, 2, 6]


@pytest.mark.parametrize(
    ("settings", "rules"),
    [
        ({"kind": "goodput"}, LoadRules(((1 << 16, 1 << 16),), 1 << 16, (1 << 17) // 3)),
        ({"kind": "static"}, LoadRules(((2, 8), (4, 6), (8, 3), (12, 1)), 12, 8)),
        (
            {"kind": "ewma", "load": LoadSettings(table=((4, 2),))},
            LoadRules(((4, 2),), 1 << 16, (1 << 17) // 3),
        ),
        (
            {"kind": "ewma", "load": LoadSettings(off_above=30)},
            LoadRules(((2, 8), (4, 6), (8, 3), (12, 1)), 30, 20),
        ),
        (
            {"kind": "ewma", "load": LoadSettings(off_above=9, resume_at=1)},
            LoadRules(((2, 8), (4, 6), (8, 3), (12, 1)), 9, 1),
        ),
    ],
)
def test_what_is_unset_is_filled_in_by_kind(settings, rules):
    """Test that a policy which reckons with the load has no cap of its own accord, and others the one by hand."""
    assert rules_of(PolicySettings(**settings)) == rules


def test_trees_are_reckoned_with_as_far_as_the_rules_let_load_be_full():
    assert unshrunk_up_to(under(RULES)) == 2
    assert unshrunk_up_to(under(replace(RULES, off_above=1))) == 1
    assert unshrunk_up_to(under(LoadSettings(), kind="goodput")) >= 1 << 16


def test_without_a_cap_the_load_is_full_whatever_runs():
    policy = LoadPolicy(under(LoadSettings(), kind="goodput"))
    limits = run(policy, [1, 48, 4096])
    assert [(limit.cap, limit.state, limit.text) for limit in limits] == [
        (8, LoadState.FULL, "load cap: none")
    ] * 3


def test_texts_that_are_long_together_have_a_cap_of_their_own():
    """Test that the tighter of the two tables holds, and that the text says which."""
    policy = LoadPolicy(under(replace(RULES, context_table=((1000, 8), (4000, 2), (8000, 0)), dwell_steps=0)))
    limits = [policy.step(idle(4, context=tokens)) for tokens in (1000, 1001, 4001, 1000)]
    assert [limit.cap for limit in limits] == [4, 2, 0, 4]
    assert [limit.text for limit in limits] == [
        "load cap: 4 running > 2",
        "load cap: 1001 attended tokens > 1000",
        "load off: 4001 attended tokens > 4000",
        "load cap: 4 running > 2",
    ]


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 3))
def test_drafts_give_way_as_the_blocks_run_out_that_waiting_requests_need(kv_free, reserve, waiting):
    """Test that the cap falls with what is left below the reserve, to 0 where nothing is, and only if someone waits."""
    settings = under(LoadSettings(kv_reserve=reserve), kind="goodput")
    limit = LoadPolicy(settings).step(idle(9, waiting=waiting, kv_free=kv_free))
    pressed = waiting > 0 and kv_free < reserve
    assert limit.cap == (int(8 * kv_free / reserve) if pressed else 8)
    assert limit.state is (
        LoadState.OFF if limit.cap == 0 else LoadState.SHRUNK if pressed else LoadState.FULL
    )


def test_what_the_kv_allows_is_said_in_words():
    limit = LoadPolicy(under(LoadSettings(), kind="goodput")).step(idle(9, waiting=3, kv_free=0.04))
    assert limit.text == "load cap: 3 wait, 4.0% of the KV is left < 10.0%"
