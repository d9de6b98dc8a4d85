"""Acceptance is learned from examined tokens only."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.acceptance import (
    HIGHEST,
    LOWEST,
    MAX_ARMS,
    MAX_CLASSES,
    OTHER_CLASSES,
    AcceptanceEstimates,
)
from policies.base import Observation

NGRAM = ("ngram", 0, 1)


def seen(drafted, accepted, *, request="r", traffic_class="chat", arm=NGRAM):
    """A round as verification reports it: the first rejection is the last token examined."""
    proposer, grade, width = arm
    examined = min(accepted + 1, drafted)
    return Observation(request, traffic_class, proposer, drafted, examined, accepted, grade, width)


def flipped(rng, rate, k, **whose):
    accepted = 0
    while accepted < k and rng.random() < rate:
        accepted += 1
    return seen(k, accepted, **whose)


def rates_of(estimates, request="r", traffic_class="chat", arm=NGRAM):
    return estimates.rates(request, traffic_class, arm)


def rate_of(estimates, *whose, **more):
    """Of the first level."""
    return rates_of(estimates, *whose, **more).first / 100


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.9])
def test_the_estimate_converges_to_the_true_rate_under_a_changing_k_and_the_naive_one_does_not(rate):
    rng = random.Random(7)
    estimates = AcceptanceEstimates(half_life=4000.0, prior=0.5)
    drafted = accepted = 0
    for step in range(4000):
        observation = flipped(rng, rate, k=1 + step // 50 % 8)
        drafted += observation.drafted
        accepted += observation.accepted
        estimates.observe([observation])
    (learned,) = estimates.classes()
    assert learned.acceptance == pytest.approx(rate, abs=0.02)
    assert accepted / drafted < rate - 0.1


@pytest.mark.parametrize("k", [1, 2, 8])
def test_a_short_half_life_adds_noise_but_no_bias_whatever_k_is(k):
    """The mean of the estimate over a long time is the rate, although every round ends with its rejection."""
    rng = random.Random(3)
    estimates = AcceptanceEstimates(half_life=16.0, prior=0.7)
    total = 0.0
    for _ in range(5000):
        estimates.observe([flipped(rng, 0.7, k)])
        total += rate_of(estimates)
    assert total / 5000 == pytest.approx(0.7, abs=0.02)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8)), max_size=20))
def test_positions_behind_the_first_rejection_change_nothing(rounds):
    """Drafting more tokens that are never examined leaves every estimate as it was."""
    short, long = AcceptanceEstimates(16.0, 0.6), AcceptanceEstimates(16.0, 0.6)
    for accepted, unexamined in rounds:
        short.observe([seen(accepted + 1, accepted)])
        long.observe([seen(accepted + 1 + unexamined, accepted)])
    assert rate_of(short) == rate_of(long)
    assert short.classes() == long.classes()


def test_a_full_accept_counts_its_own_tokens_and_no_rejection():
    estimates = AcceptanceEstimates(1e9, 0.6)
    estimates.observe([seen(6, 6)])
    (learned,) = estimates.classes()
    assert learned.examined == pytest.approx(6)
    assert learned.acceptance == HIGHEST


def test_old_evidence_weighs_half_after_a_half_life_of_examined_tokens():
    """A class's half-life is sixteen times as long as a request's, which is the one that is configured."""
    estimates = AcceptanceEstimates(half_life=1.0, prior=0.6)
    estimates.observe([seen(1, 1) for _ in range(64)])
    for count, left in ((16, 32.0 + 16), (32, (32.0 + 16) / 4 + 32)):
        estimates.observe([seen(1, 1) for _ in range(count)])
        assert estimates.classes()[0].examined == pytest.approx(left)


def test_a_round_without_a_draft_says_nothing():
    estimates = AcceptanceEstimates(16.0, 0.6)
    estimates.observe([seen(0, 0)])
    assert estimates.classes() == []
    assert rates_of(estimates) == (60, 60, False)


@pytest.mark.parametrize(("drafted", "examined", "accepted"), [(4, 4, 2), (4, 1, 2)])
def test_a_round_that_cannot_have_happened_is_not_learned_from(drafted, examined, accepted):
    with pytest.raises(AssertionError):
        AcceptanceEstimates(16.0, 0.6).observe(
            [Observation("r", "chat", "ngram", drafted, examined, accepted)]
        )


def test_a_class_starts_from_the_prior_and_a_new_request_from_its_class():
    estimates = AcceptanceEstimates(16.0, 0.6)
    assert rates_of(estimates, "first", "code") == (60, 60, False)
    for _ in range(50):
        estimates.observe([seen(4, 4, request="first", traffic_class="code")])
    second = rates_of(estimates, "second", "code")
    assert min(second.first, second.later) > 95
    assert not second.own
    assert rates_of(estimates, "third", "chat") == (60, 60, False)


def test_a_request_unlike_its_class_is_soon_judged_by_itself():
    estimates = AcceptanceEstimates(16.0, 0.6)
    for _ in range(50):
        estimates.observe([seen(4, 4, request="good")])
    for _ in range(20):
        estimates.observe([seen(4, 0, request="bad")])
    assert rate_of(estimates, "bad") < 0.25
    assert rate_of(estimates, "good") > 0.9


def test_one_rejection_does_not_condemn_a_new_request_of_a_good_class():
    estimates = AcceptanceEstimates(16.0, 0.6)
    for _ in range(50):
        estimates.observe([seen(4, 4, request="good")])
    estimates.observe([seen(4, 0, request="new")])
    assert 0.6 < rate_of(estimates, "new") < rate_of(estimates, "good")


@pytest.mark.parametrize("other", [("eagle", 0, 1), ("ngram", 2, 1), ("ngram", 0, 4)])
def test_what_one_arm_shows_says_nothing_of_another(other):
    """Another proposer, a guess of another grade, a tree instead of a chain: each is learned apart."""
    estimates = AcceptanceEstimates(16.0, 0.6)
    for _ in range(50):
        estimates.observe([seen(4, 0)])
    assert rates_of(estimates, arm=other) == (60, 60, False)
    for _ in range(10):
        estimates.observe([seen(4, 4, arm=other)])
    assert rate_of(estimates) < 0.1
    assert rate_of(estimates, arm=other) > 0.85
    assert [(each.proposer, each.grade, each.width) for each in estimates.classes()] == [NGRAM, other]


def test_the_first_level_and_those_after_it_have_rates_of_their_own():
    rng = random.Random(11)
    estimates = AcceptanceEstimates(64.0, 0.5)
    for _ in range(2000):
        hits = 0
        while hits < 6 and rng.random() < (0.3 if hits == 0 else 0.9):
            hits += 1
        estimates.observe([seen(6, hits)])
    learned = rates_of(estimates, "new")
    assert learned.first == pytest.approx(30, abs=5)
    assert learned.later == pytest.approx(90, abs=5)


def test_what_later_levels_once_showed_fades_while_drafts_of_one_level_show_nothing_of_them():
    """Else a few unlucky rounds would keep drafts that short for good."""
    estimates = AcceptanceEstimates(16.0, 0.6)
    for _ in range(20):
        estimates.observe([seen(4, 1)])
    assert rates_of(estimates).later < 15
    for _ in range(600):
        estimates.observe([seen(1, 1)])
    assert rates_of(estimates).later > 40


def test_a_class_whose_draft_breaks_is_known_for_it_after_a_few_tokens():
    """Not after as many as it was good for; new requests are spared the rest."""
    estimates = AcceptanceEstimates(16.0, 0.6)
    for number in range(300):
        estimates.observe([seen(3, (0, 1, 3)[number % 3], request="old")])
    assert rate_of(estimates, "new") > 0.6
    for _ in range(30):
        estimates.observe([seen(3, 0, request="old")])
    assert rate_of(estimates, "new") < 0.3


def test_steady_coins_contradict_nothing():
    """The long memory of a class outlives its lucky and unlucky runs: its estimate varies little."""
    rng = random.Random(2)
    estimates = AcceptanceEstimates(16.0, 0.6)
    learned = []
    for _ in range(3000):
        estimates.observe([flipped(rng, 0.6, 3)])
        learned.append(rate_of(estimates, "new"))
    late = sorted(learned[500:])
    assert late[len(late) // 50] > 0.5
    assert late[-len(late) // 50] < 0.7


@given(st.lists(st.integers(0, 8), max_size=60), st.floats(0, 1), st.floats(0.1, 100))
def test_estimates_stay_away_from_0_and_1(accepts, prior, half_life):
    estimates = AcceptanceEstimates(half_life, prior)
    for accepted in accepts:
        estimates.observe([seen(8, accepted)])
    assert LOWEST <= rate_of(estimates) <= HIGHEST
    assert LOWEST <= rate_of(estimates, "new") <= HIGHEST


def test_invented_class_names_cannot_fill_the_memory():
    estimates = AcceptanceEstimates(16.0, 0.6)
    for number in range(2 * MAX_CLASSES):
        estimates.observe([seen(4, 0, request=f"r{number}", traffic_class=f"c{number}")])
        estimates.forget(f"r{number}")
    names = [each.traffic_class for each in estimates.classes()]
    assert len(names) == MAX_CLASSES + 1
    assert names[-1] == OTHER_CLASSES
    assert rate_of(estimates, "new", "one more name") < 0.1


def test_a_request_remembers_so_many_arms_and_no_more():
    estimates = AcceptanceEstimates(16.0, 0.6)
    for grade in range(3 * MAX_ARMS):
        estimates.observe([seen(4, 4, arm=("suffix", grade, 1))])
    assert len(estimates._requests["r"]) == MAX_ARMS
    assert not rates_of(estimates, arm=("suffix", 0, 1)).own
    assert rates_of(estimates, arm=("suffix", 3 * MAX_ARMS - 1, 1)).own


def test_forgetting_a_request_keeps_what_its_class_learned():
    estimates = AcceptanceEstimates(16.0, 0.6)
    for _ in range(50):
        estimates.observe([seen(4, 4)])
    before = estimates.classes()
    estimates.forget("r")
    estimates.forget("never seen")
    assert estimates.classes() == before
    rates = rates_of(estimates)
    assert rates.first > 90
    assert not rates.own


def test_other_weights_are_taken_on_the_same_evidence():
    estimates = AcceptanceEstimates(16.0, 0.9)
    estimates.observe([seen(1, 0)])
    hopeful = rate_of(estimates)
    estimates.configure(half_life=16.0, prior=0.1)
    assert rate_of(estimates) < hopeful
    assert rates_of(estimates).own
