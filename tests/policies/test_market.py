"""What is taken step after step, against reckoning each step exactly by itself."""

import numpy as np
import pytest

from policies.goodput import allocate
from policies.lengths import Prices
from policies.market import CHECK_EVERY, Market
from tests.policies.test_goodput import host, offers, random_offers


def rate(steps, answer):
    """Tokens a second over all of these offers and prices."""
    found = [answer(offered, prices) for offered, prices in steps]
    return sum(each.tokens for each in found) / sum(each.seconds for each in found)


def exactly(offered, prices):
    """Each step by itself."""
    return allocate(offered, prices)


def by_market():
    """A market's answer, without a bound."""
    market = Market()
    return lambda offered, prices: market.allocate(offered, prices, None)


@pytest.mark.parametrize("requests", [1, 4, 24])
def test_over_many_steps_a_market_brings_as_much_as_reckoning_each_exactly(requests):
    """Where some steps have far better offers than others, it brings more: what is dear in one is cheap on average."""
    rng = np.random.default_rng(requests)
    prices = host(requests, ngram=(0, 0.005, 0, 0), eagle=(0.05, 0.05, 0.002, 0.001))
    steps = [(random_offers(rng, requests, trees=True, owed=True), prices) for _ in range(200)]
    assert rate(steps, by_market()) > 0.995 * rate(steps, exactly)


def test_steps_that_differ_are_worth_more_at_the_price_of_all():
    """One in two steps has a draft that is sure. A step by itself would draft the poor one as long as it is just ahead
    of plain; at the price of both, its time is better spent on the other.
    """
    prices = host(1, head=(0.0, 0.3, 0.0, 0.0))
    sure, poor = offers([[[0.99] * 8]]), offers([[[0.5, 0.3] + [0.01] * 6]])
    steps = [(offered, prices) for offered in (sure, poor) * 100]
    assert rate(steps, by_market()) > 1.01 * rate(steps, exactly)


def test_where_rows_cost_by_stairs_the_whole_batch_is_reckoned_exactly():
    stairs = Prices(1.0 + 0.5 * (np.arange(400) // 16), *np.array([[0.0, 0.0, 0.0, 0.0]]).T)
    rng = np.random.default_rng(3)
    steps = [(offers(rng.uniform(0.2, 0.9, (1, 20, 6))), stairs) for _ in range(4 * CHECK_EVERY)]
    answer = by_market()
    for offered, prices in steps[: 2 * CHECK_EVERY]:
        answer(offered, prices)
    assert rate(steps[2 * CHECK_EVERY :], answer) > 0.99 * rate(steps[2 * CHECK_EVERY :], exactly)


def test_a_bound_holds_at_any_price():
    rng = np.random.default_rng(4)
    prices, market = host(8, ngram=(0, 0.005, 0, 0)), Market()
    for _ in range(20):
        found = market.allocate(offers(rng.uniform(0.2, 0.9, (1, 8, 6))), prices, 1.5)
        assert found.seconds <= 1.5


def test_other_batches_are_allocated_at_a_price_of_their_own():
    """From one request to many and back, in one step each, with no more rows than each batch may draft."""
    rng = np.random.default_rng(5)
    answer, shares = by_market(), []
    for requests in (1, 40) * 60:
        prices = host(requests, 4 * requests, ngram=(0, 0.005, 0, 0), eagle=(0.05, 0.05, 0, 0))
        offered = random_offers(rng, requests, trees=False, owed=False)
        shares.append(answer(offered, prices).goodput / exactly(offered, prices).goodput)
    assert np.mean(shares[20:]) > 0.97
