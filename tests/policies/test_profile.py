"""What follows from a calibration: crossover, caps with their margin, and where it holds."""

from dataclasses import replace

import pytest

from policies.cost import StepCosts
from policies.load import NO_CAP
from policies.profile import Cap, Point, Subject, concluded, misfit, with_load
from policies.settings import LoadSettings, PolicySettings

SUBJECT = Subject("a processor", 2, 2, "abc", ("ngram", "eagle-1"), "bfloat16", "none")


def points(gains, context=100):
    """From {running: {k: gain}}: a plain step of a second a text, drafts that bring so many times as many tokens."""
    found = []
    for running, by_k in gains.items():
        for k, gain in {0: 1.0, **by_k}.items():
            found.append(Point(running, k, context, running * gain, 1.0, 1.1))
    return found


def of(gains, long=(), margin=0.05):
    return concluded(
        SUBJECT, StepCosts(), points(gains), list(long), made="2026-01-01", mix="mixed", margin=margin
    )


LOSING = {1: {2: 1.4, 8: 1.8}, 4: {2: 1.3, 8: 1.2}, 16: {2: 1.1, 8: 0.7}, 48: {2: 0.8, 8: 0.4}}


def test_each_length_is_allowed_up_to_where_it_still_gains_the_margin():
    """Test that longer drafts end earlier, all end below the crossover, and they come back further below."""
    profile = of(LOSING)
    (first, k), (last, shorter) = profile.load.table
    assert (k, shorter) == (8, 2)
    assert 4 < first < 16 < last < profile.crossover < 48
    assert profile.load.off_above == last
    assert profile.load.resume_at == last * 2 // 3


def test_a_cut_off_lies_where_a_line_over_the_logarithm_of_the_load_meets_the_margin():
    profile = of({4: {2: 1.2}, 16: {2: 1.0}}, margin=0.1)
    assert profile.load == Cap(((8, 2),), 8, 5)


def test_a_larger_margin_cuts_off_earlier_and_leaves_the_crossover():
    near, far = of(LOSING, margin=0.02), of(LOSING, margin=0.2)
    assert far.load.off_above < near.load.off_above
    assert far.crossover == near.crossover


def test_where_drafts_gain_at_every_load_there_is_neither_a_cap_nor_a_crossover():
    profile = of({1: {8: 2.0}, 48: {8: 1.5}})
    assert profile.crossover is None
    assert profile.load == Cap(((NO_CAP, 8),), NO_CAP, NO_CAP * 2 // 3)


def test_where_no_draft_gains_anything_drafting_is_off():
    profile = of({1: {2: 0.9}, 4: {2: 0.8}})
    assert (profile.crossover, profile.load) == (0, Cap(((1, 0),), 0, 0))


def test_only_policies_that_do_not_reckon_with_the_load_get_the_caps():
    """Test that goodput stays as it is: where all drafts together lose, those of a few may still pay."""
    profile, settings = of(LOSING), PolicySettings()
    assert with_load(replace(settings, kind="goodput"), profile).load == settings.load
    for kind in ("static", "ewma"):
        capped = with_load(replace(settings, kind=kind), profile).load
        assert Cap(capped.table, capped.off_above, capped.resume_at) == profile.load


def test_goodput_gets_the_caps_where_it_is_asked_for():
    profile = of(LOSING)
    for kind in ("goodput", "ewma"):
        capped = with_load(PolicySettings(kind), profile, always=True).load
        assert Cap(capped.table, capped.off_above, capped.resume_at) == profile.load


@pytest.mark.parametrize("theirs", [LoadSettings(table=((3, 3),)), LoadSettings(off_above=3)])
def test_what_the_operator_has_set_stays(theirs):
    kept = with_load(PolicySettings(kind="ewma", load=theirs), of(LOSING)).load
    assert (kept.table, kept.off_above, kept.resume_at) == (theirs.table, theirs.off_above, theirs.resume_at)


def test_longer_texts_that_bear_less_give_a_cap_by_context_and_others_none():
    """Test that the cap is in tokens of all texts together, and ends in off."""
    longer = points({1: {2: 1.3}, 4: {2: 1.0}}, context=1000)
    table = of(LOSING, longer).context_table
    assert [k for _, k in table] == [2, 0]
    assert 1000 < table[0][0] < 4000
    assert of(LOSING, points({1: {2: 1.3}, 4: {2: 1.3}}, context=1000)).context_table == ()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({}, None),
        ({"processor": "b"}, "it was measured with the processor a processor, here it is b"),
        ({"dtype": "float32"}, "it was measured with the dtype bfloat16, here it is float32"),
        ({"target": "d"}, "it was measured with the target abc, here it is d"),
        ({"drafts": ("ngram",)}, "it was measured with the drafts ngram+eagle-1, here it is ngram"),
        ({"quantization": "int8"}, "it was measured with the quantization none, here it is int8"),
    ],
)
def test_a_profile_holds_for_what_it_was_measured_of_and_says_what_differs(change, sentence):
    assert misfit(SUBJECT, replace(SUBJECT, **change)) == sentence
