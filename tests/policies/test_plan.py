"""What a draft brings, by formula."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.plan import BestK, best_k, expected_tokens, speedup

rates = st.floats(0.01, 0.99)
costs = st.floats(0.0, 2.0)
lengths = st.integers(0, 16)


@given(rates, lengths)
def test_expected_tokens_is_the_mean_over_all_outcomes_of_a_round(acceptance, k):
    """A round accepts exactly j tokens with chance a^j (1 - a), or all k, and commits one more of its own."""
    mean = sum((j + 1) * acceptance**j * (1 - acceptance) for j in range(k)) + (k + 1) * acceptance**k
    assert math.isclose(expected_tokens(acceptance, k), mean, rel_tol=1e-9)


@given(rates, lengths)
def test_expected_tokens_is_equation_1_of_the_paper(acceptance, k):
    closed_form = (1 - acceptance ** (k + 1)) / (1 - acceptance)
    assert math.isclose(expected_tokens(acceptance, k), closed_form, rel_tol=1e-9)


def test_a_perfect_draft_commits_all_of_it_and_one_more():
    assert expected_tokens(1.0, 5) == 6.0


@given(rates, costs)
def test_plain_decoding_is_the_unit_of_speedup(acceptance, cost):
    assert speedup(acceptance, 0, cost) == 1.0


@given(rates, costs, lengths)
def test_the_prepared_lookup_finds_what_brute_force_finds(acceptance, cost, k_max):
    """Where the two k differ at all, it is by rounding at a tie."""
    found, brute = BestK(cost, k_max)(acceptance), best_k(acceptance, cost, k_max)
    assert 0 <= found <= k_max
    assert math.isclose(speedup(acceptance, found, cost), speedup(acceptance, brute, cost), rel_tol=1e-9)


def test_the_prepared_lookup_agrees_exactly_on_a_grid_of_ordinary_values():
    for cost in (0.01, 0.03, 0.08, 0.2, 0.7):
        lookup = BestK(cost, 8)
        for percent in range(1, 100):
            acceptance = (percent + 0.37) / 101
            assert lookup(acceptance) == best_k(acceptance, cost, 8)


def test_of_equal_arms_the_shorter_draft_is_taken():
    """At acceptance = cost one drafted token earns exactly what it costs."""
    assert speedup(0.25, 1, 0.25) == speedup(0.25, 0, 0.25)
    assert best_k(0.25, 0.25, 4) == BestK(0.25, 4)(0.25) == 0


@pytest.mark.parametrize(("acceptance", "k"), [(0.05, 0), (0.5, 3), (0.95, 8)])
def test_better_acceptance_is_worth_longer_drafts(acceptance, k):
    assert BestK(0.08, 8)(acceptance) == best_k(acceptance, 0.08, 8) == k


def test_a_free_draft_is_always_as_long_as_allowed_and_a_ruinous_one_never_made():
    assert BestK(0.0, 8)(0.01) == 8
    assert BestK(1.5, 8)(0.99) == 0
