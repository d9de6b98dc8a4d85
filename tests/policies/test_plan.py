"""What a draft brings, by formula."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.plan import best_k, expected_tokens, gain, speedup

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


@given(rates, rates, lengths)
def test_the_gain_of_a_free_draft_is_the_mean_over_all_outcomes_of_a_round(first, later, k):
    """The first level is accepted at a rate of its own, each later one at another."""
    reached = [1.0, *(first * later**level for level in range(k))]
    mean = (
        sum((j + 1) * reached[j] * (1 - (first if j == 0 else later)) for j in range(k))
        + (k + 1) * reached[k]
    )
    assert math.isclose(gain(first, later, [1.0] * (k + 1)).of[k], mean, rel_tol=1e-9)


@given(rates, rates, st.lists(st.floats(1.0, 3.0), min_size=1, max_size=17).map(sorted))
def test_under_each_limit_the_best_k_is_the_shortest_of_those_that_bring_most(first, later, costs):
    costs[0] = 1.0
    found = gain(first, later, costs)
    for limit, k in enumerate(found.best):
        assert found.of[k] == max(found.of[: limit + 1])
        assert k == found.of.index(found.of[k])


def test_of_equal_arms_the_shorter_draft_is_taken():
    """At acceptance = cost one drafted token earns exactly what it costs."""
    assert speedup(0.25, 1, 0.25) == speedup(0.25, 0, 0.25)
    assert best_k(0.25, 0.25, 4) == 0
    assert gain(0.25, 0.25, [1.0, 1.25]).best == (0, 0)


@pytest.mark.parametrize(("acceptance", "k"), [(0.05, 0), (0.5, 3), (0.95, 8)])
def test_better_acceptance_is_worth_longer_drafts(acceptance, k):
    costs = [1.0 + 0.08 * j for j in range(9)]
    assert gain(acceptance, acceptance, costs).best[-1] == best_k(acceptance, 0.08, 8) == k


def test_a_free_draft_is_always_as_long_as_allowed_and_a_ruinous_one_never_made():
    assert best_k(0.1, 0.0, 8) == 8
    assert best_k(0.99, 1.5, 8) == 0


def test_a_match_that_mostly_holds_once_it_has_held_is_worth_a_long_draft_although_it_seldom_does():
    """One rate for all levels, 0.3 at the first or 0.6 over all, would choose a shorter one or none."""
    costs = [1.0 + 0.1 * j for j in range(9)]
    assert gain(0.3, 0.95, costs).best[-1] > gain(0.6, 0.6, costs).best[-1] > gain(0.3, 0.3, costs).best[-1]
