"""What a draft brings, by formula."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.cost import DraftCost, StepCosts
from policies.plan import expected_by_position, expected_tokens, gain, load_table, speedups

rates = st.floats(0.01, 0.99)
costs = st.floats(0.0, 2.0)
lengths = st.integers(0, 16)


def _flat(cost):
    """Where a drafted token costs so many plain steps, and rows nothing."""
    return StepCosts(((1, 1.0), (2, 1.0)), other=DraftCost(cost))


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


@given(rates, costs, lengths)
def test_a_speedup_is_theorem_3_8_of_the_paper(acceptance, cost, k):
    found = speedups(_flat(cost), "", [acceptance] * k)
    assert math.isclose(found[k], expected_tokens(acceptance, k) / (1 + k * cost), rel_tol=1e-9)
    assert found[0] == 1.0


@given(st.lists(rates, max_size=8))
def test_expected_tokens_by_position_are_the_mean_over_all_outcomes_of_a_round(acceptances):
    """With another acceptance at each position."""
    found = expected_by_position(acceptances)
    for k in range(len(acceptances) + 1):
        reached = [math.prod(acceptances[:j]) for j in range(k + 1)]
        ends = [*(reached[j] - reached[j + 1] for j in range(k)), reached[k]]
        assert math.isclose(found[k], sum((j + 1) * end for j, end in enumerate(ends)), rel_tol=1e-9)


def test_a_speedup_counts_rows_of_all_who_run_their_passes_and_what_they_attend_to():
    table = StepCosts(
        ((1, 1.0), (5, 2.0), (9, 4.0)), {"d": DraftCost(0.1, 0.2, 0.01)}, key=0.001, sequence=0.05
    )
    plain, drafting = 1.25 + 0.3, 2.5 + 0.3 + 0.2 + 2 * 0.1 + 4 * 0.01
    found = speedups(table, "d", [0.5, 0.5], running=2, context=100)
    assert math.isclose(found[2], 1.75 * plain / drafting)


def test_the_table_is_the_best_static_k_of_each_load():
    """Whoever tries all k at every number of running requests finds no better one."""
    table = StepCosts(((1, 1.0), (8, 1.7), (16, 3.0)), {"d": DraftCost(0.1)}, key=1e-3)
    falling = [0.7, 0.6, 0.5, 0.4]
    rows = load_table(table, "d", falling, max_running=16, context=50)
    for running in range(1, 17):
        gains = speedups(table, "d", falling, running=running, context=50)
        k = next(k for up_to, k in rows if running <= up_to)
        assert gains[k] == max(gains)
    assert rows[0][1] > rows[-1][1]


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
    assert speedups(_flat(0.25), "", [0.25]) == [1.0, 1.0]
    assert gain(0.25, 0.25, [1.0, 1.25]).best == (0, 0)


@pytest.mark.parametrize(("acceptance", "k"), [(0.05, 0), (0.5, 3), (0.95, 8)])
def test_better_acceptance_is_worth_longer_drafts(acceptance, k):
    costs = [1.0 + 0.08 * j for j in range(9)]
    found = speedups(_flat(0.08), "", [acceptance] * 8)
    assert gain(acceptance, acceptance, costs).best[-1] == found.index(max(found)) == k


def test_a_match_that_mostly_holds_once_it_has_held_is_worth_a_long_draft_although_it_seldom_does():
    """One rate for all levels, 0.3 at the first or 0.6 over all, would choose a shorter one or none."""
    costs = [1.0 + 0.1 * j for j in range(9)]
    assert gain(0.3, 0.95, costs).best[-1] > gain(0.6, 0.6, costs).best[-1] > gain(0.3, 0.3, costs).best[-1]
