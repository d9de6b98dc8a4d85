"""Texts that were made to defy drafts: what they can cost."""

from itertools import cycle, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.base import Reason
from tests.policies.closed_loop import HOST, TWO, Loop


def of_plain(loop: Loop, steps: int) -> float:
    """Tokens a second over so many steps, in those of plain decoding."""
    return loop.speed(steps) * HOST.step(loop.requests) / loop.requests


def good_while_short(loop, i):
    return loop.chosen[-1][i][0] <= 1


def good_as_long_as_nothing_is_drafted(loop, i):
    return loop.chosen[-1][i][0] == 0


def good_for_probes(loop, i):
    return loop.reasons[-1][i] is Reason.PROBE


def good_when_drafts_become_shorter(loop, i):
    return len(loop.chosen) > 1 and loop.chosen[-1][i][0] < loop.chosen[-2][i][0]


@pytest.mark.parametrize("requests", [1, 4])
@pytest.mark.parametrize(
    "accepts",
    [
        good_while_short,
        good_as_long_as_nothing_is_drafted,
        good_for_probes,
        good_when_drafts_become_shorter,
    ],
)
def test_who_knows_what_was_drafted_and_defies_it_costs_a_tenth_at_most(accepts, requests):
    """Test that an adversary who looks at each request's last round, accepts all of the next draft where that lures the
    policy on and nothing where it follows, takes no more than a tenth of plain decoding's speed.
    """
    loop = Loop(requests, lambda i, step: {"eagle": 0.0})
    loop.rates = lambda i, step: {"eagle": float(step > 0 and accepts(loop, i))}
    loop.speed(100)
    assert of_plain(loop, 500) > 0.9


@settings(max_examples=8, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=24), st.sampled_from([1, 4]), st.integers(0, 5))
def test_no_sequence_that_was_fixed_beforehand_costs_more_than_a_few_percent(accepts, requests, apart):
    """Test that whatever is accepted in which step, all of a draft or nothing, and however requests differ in it, the
    first 300 steps with two proposers are within 4 % of plain decoding or faster, what is learned and probed included.
    """
    longer = [*islice(cycle(accepts), 300 + 3 * apart)]
    loop = Loop(
        requests,
        lambda i, step: dict.fromkeys(("ngram", "eagle"), float(longer[step + apart * i])),
        options=lambda i, step, rng: TWO,
    )
    assert of_plain(loop, 300) > 0.96
