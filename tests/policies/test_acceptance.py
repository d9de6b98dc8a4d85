"""Acceptance is learned from examined tokens only."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.acceptance import HIGHEST, LOWEST, MAX_CLASSES, OTHER_CLASSES, AcceptanceEstimates, Evidence
from policies.base import Observation


def seen(drafted, accepted, *, request="r", traffic_class="chat", proposer="ngram"):
    """A round as verification reports it: the first rejection is the last token examined."""
    return Observation(request, traffic_class, proposer, drafted, min(accepted + 1, drafted), accepted)


def flipped(rng, rate, k, **whose):
    accepted = 0
    while accepted < k and rng.random() < rate:
        accepted += 1
    return seen(k, accepted, **whose)


def rate_of(estimates, request="r", traffic_class="chat"):
    return estimates.estimate(request, traffic_class)[0]


@pytest.mark.parametrize("rate", [0.3, 0.6, 0.9])
def test_the_estimate_converges_to_the_true_rate_under_a_changing_k_and_the_naive_one_does_not(rate):
    rng = random.Random(7)
    estimates = AcceptanceEstimates(half_life=4000.0, prior=0.5)
    drafted = accepted = 0
    for step in range(12_000):
        observation = flipped(rng, rate, k=1 + step // 50 % 8)
        drafted += observation.drafted
        accepted += observation.accepted
        estimates.observe(observation)
    (learned,) = estimates.classes()
    assert learned.acceptance == pytest.approx(rate, abs=0.02)
    assert accepted / drafted < rate - 0.1


@pytest.mark.parametrize("k", [1, 2, 8])
def test_a_short_half_life_adds_noise_but_no_bias_whatever_k_is(k):
    """The mean of the estimate over a long time is the rate, although every round ends with its rejection."""
    rng = random.Random(3)
    estimates = AcceptanceEstimates(half_life=16.0, prior=0.7)
    total = 0.0
    for _ in range(8000):
        estimates.observe(flipped(rng, 0.7, k))
        total += rate_of(estimates)
    assert total / 8000 == pytest.approx(0.7, abs=0.02)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8)), max_size=20))
def test_positions_behind_the_first_rejection_change_nothing(rounds):
    """Drafting more tokens that are never examined leaves every estimate as it was."""
    short, long = AcceptanceEstimates(16.0, 0.6), AcceptanceEstimates(16.0, 0.6)
    for accepted, unexamined in rounds:
        short.observe(seen(accepted + 1, accepted))
        long.observe(seen(accepted + 1 + unexamined, accepted))
    assert rate_of(short) == rate_of(long)
    assert short.classes() == long.classes()


def test_a_full_accept_counts_its_own_tokens_and_no_rejection():
    evidence = Evidence()
    evidence.add(accepted=4, examined=4, half_life=16.0)
    assert (evidence.accepted, evidence.examined) == (4, 4)


def test_old_evidence_weighs_half_after_a_half_life_of_examined_tokens():
    evidence = Evidence()
    evidence.add(accepted=8, examined=8, half_life=5.0)
    for _ in range(5):
        evidence.add(accepted=0, examined=1, half_life=5.0)
    assert evidence.accepted == pytest.approx(4.0)
    evidence.add(accepted=5, examined=5, half_life=5.0)
    assert evidence.accepted == pytest.approx(2.0 + 5.0)


def test_a_round_without_a_draft_says_nothing():
    estimates = AcceptanceEstimates(16.0, 0.6)
    estimates.observe(seen(0, 0, proposer="none"))
    assert estimates.classes() == []
    assert estimates.estimate("r", "chat") == (0.6, False)


@pytest.mark.parametrize(("drafted", "examined", "accepted"), [(4, 4, 2), (4, 1, 2), (2, 3, 2)])
def test_a_round_that_cannot_have_happened_is_not_learned_from(drafted, examined, accepted):
    with pytest.raises(AssertionError):
        AcceptanceEstimates(16.0, 0.6).observe(Observation("r", "chat", "ngram", drafted, examined, accepted))


def test_a_class_starts_from_the_prior_and_a_new_request_from_its_class():
    estimates = AcceptanceEstimates(16.0, 0.6)
    assert estimates.estimate("first", "code") == (0.6, False)
    for _ in range(50):
        estimates.observe(seen(4, 4, request="first", traffic_class="code"))
    acceptance, own = estimates.estimate("second", "code")
    assert acceptance > 0.95
    assert not own
    assert estimates.estimate("third", "chat") == (0.6, False)


def test_a_request_unlike_its_class_is_soon_judged_by_itself():
    estimates = AcceptanceEstimates(16.0, 0.6)
    for _ in range(50):
        estimates.observe(seen(4, 4, request="good"))
    for _ in range(20):
        estimates.observe(seen(4, 0, request="bad"))
    assert rate_of(estimates, "bad") < 0.25
    assert rate_of(estimates, "good") > 0.9


def test_one_rejection_does_not_condemn_a_new_request_of_a_good_class():
    estimates = AcceptanceEstimates(16.0, 0.6)
    for _ in range(50):
        estimates.observe(seen(4, 4, request="good"))
    estimates.observe(seen(4, 0, request="new"))
    assert 0.6 < rate_of(estimates, "new") < rate_of(estimates, "good")


def test_proposers_are_classes_apart_and_a_request_starts_afresh_with_another():
    estimates = AcceptanceEstimates(16.0, 0.6)
    for _ in range(50):
        estimates.observe(seen(4, 0, proposer="ngram"))
    estimates.observe(seen(1, 1, proposer="layer-skip"))
    assert rate_of(estimates) > 0.6
    assert [(entry.proposer, entry.acceptance > 0.5) for entry in estimates.classes()] == [
        ("ngram", False),
        ("layer-skip", True),
    ]


@given(st.lists(st.integers(0, 8), max_size=60), st.floats(0, 1), st.floats(0.1, 100))
def test_estimates_stay_away_from_0_and_1(accepts, prior, half_life):
    estimates = AcceptanceEstimates(half_life, prior)
    for accepted in accepts:
        estimates.observe(seen(8, accepted))
    assert LOWEST <= rate_of(estimates) <= HIGHEST
    assert LOWEST <= rate_of(estimates, "new") <= HIGHEST


def test_invented_class_names_cannot_fill_the_memory():
    estimates = AcceptanceEstimates(16.0, 0.6)
    for number in range(3 * MAX_CLASSES):
        estimates.observe(seen(4, 0, request=f"r{number}", traffic_class=f"c{number}"))
        estimates.forget(f"r{number}")
    keys = [(entry.traffic_class, entry.proposer) for entry in estimates.classes()]
    assert len(keys) == MAX_CLASSES + 1
    assert keys[-1] == OTHER_CLASSES
    assert rate_of(estimates, "new", "one more name") < 0.1


def test_forgetting_a_request_keeps_what_its_class_learned():
    estimates = AcceptanceEstimates(16.0, 0.6)
    for _ in range(50):
        estimates.observe(seen(4, 4))
    before = estimates.classes()
    estimates.forget("r")
    estimates.forget("never seen")
    assert estimates.classes() == before
    assert estimates.estimate("r", "chat") == (before[0].acceptance, False)


def test_other_weights_are_taken_on_the_same_evidence():
    estimates = AcceptanceEstimates(16.0, 0.9)
    estimates.observe(seen(1, 0))
    hopeful = rate_of(estimates)
    estimates.configure(half_life=16.0, prior=0.1)
    assert rate_of(estimates) < hopeful
    assert estimates.estimate("r", "chat")[1]
