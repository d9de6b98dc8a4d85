"""The allocation against all allocations there are, for batches small enough to try them all."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.goodput import Offers, Prices, allocate, alone, at_price, plain

HOST_ROWS, HOST_COST = (1, 2, 4, 8, 16, 32), (1.0, 1.08, 1.16, 1.37, 1.85, 2.61)


def host(base=1, most=400, **drafts):
    """Prices of the host's cost shape, in plain steps, beside `base` rows; drafts: (fixed, level, node, owed)."""
    rows = np.arange(most + 1)
    slope = (2.61 - 1.85) / 16
    step = np.interp(rows, HOST_ROWS, HOST_COST) + slope * np.maximum(rows - 32, 0)
    costs = np.array(list(drafts.values()) or [(0.0, 0.034, 0.0, 0.0)], dtype=float).T
    return Prices(step[base:], *costs)


def offers(rates, proposer=None, width=None, owed=None, *, held=None, nodes=16):
    """rates: [O, b, K] acceptance of each level."""
    rates = np.asarray(rates, dtype=float)
    gains = np.cumprod(rates, axis=2).transpose(2, 0, 1).copy()
    shape = gains.shape[1:]
    return Offers(
        gains,
        np.zeros(shape, dtype=np.intp) if proposer is None else np.asarray(proposer),
        np.ones(shape, dtype=np.intp) if width is None else np.asarray(width),
        np.zeros(shape) if owed is None else np.asarray(owed, dtype=float),
        np.zeros(shape[1], dtype=bool) if held is None else np.asarray(held),
        nodes,
    )


def worth(offered, prices, place, k):
    """Tokens and seconds of allocations, by the definition; place, k: [n, b]."""
    some, each = k > 0, np.arange(k.shape[1])
    levels = np.concatenate([np.zeros((1, *offered.proposer.shape)), np.cumsum(offered.gains, axis=0)])
    proposer, width = offered.proposer[place, each], offered.width[place, each]
    rows = np.where(width > 1, np.minimum(width * k, offered.nodes), k)
    seconds = prices.step[rows.sum(axis=1)] + (rows * prices.node[proposer]).sum(axis=1)
    seconds = seconds + (some * offered.owed[place, each] * prices.owed[proposer]).sum(axis=1)
    for p in range(len(prices.level)):
        deepest = (k * (proposer == p)).max(axis=1)
        seconds += prices.fixed[p] * (deepest > 0) + prices.level[p] * deepest
    return k.shape[1] + levels[k, place, each].sum(axis=1), seconds


def brute_force(offered, prices, bound=np.inf):
    """The best goodput of all allocations."""
    levels, options, requests = offered.gains.shape
    choices = [
        [(0, 0)] * (not (offered.held[i] and (offered.gains[0, :, i] > 0).any()))
        + [(o, k) for o in range(options) for k in range(1, levels + 1) if offered.gains[k - 1, o, i] > 0]
        for i in range(requests)
    ]
    place, k = np.array(list(product(*choices))).transpose(2, 0, 1)
    tokens, seconds = worth(offered, prices, place, k)
    return (tokens / seconds)[(seconds <= bound) | (k == 0).all(axis=1)].max()


def reached(offered, prices, **options):
    """Goodput of what is allocated, reckoned anew, after a check of what is said of it."""
    found = allocate(offered, prices, **options)
    (tokens,), (seconds,) = worth(offered, prices, found.place[None], found.k[None])
    assert seconds <= found.seconds * (1 + 1e-9)
    assert tokens == pytest.approx(found.tokens)
    drafting = np.flatnonzero(found.k)
    assert (offered.gains[found.k[drafting] - 1, found.place[drafting], drafting] > 0).all()
    return tokens / seconds


rate = st.floats(0.01, 0.99)
increments = st.lists(st.floats(0.0, 0.3), min_size=40, max_size=40)


@given(
    st.integers(1, 5).flatmap(
        lambda b: st.lists(st.lists(rate, min_size=4, max_size=4), min_size=b, max_size=b)
    ),
    increments,
    st.tuples(st.floats(0, 0.3), st.floats(0, 0.3), st.floats(0, 0.1)),
)
def test_chains_of_one_proposer_are_allocated_as_well_as_by_trying_all(rates, steps, costs):
    """Whatever rows cost, as long as more of them never cost less."""
    prices = Prices(1 + np.cumsum([0.0, *steps]), *np.array([[*costs, 0.0]]).T)
    offered = offers([rates])
    assert reached(offered, prices) == pytest.approx(brute_force(offered, prices), rel=1e-9)


def random_offers(rng, requests, *, trees, owed):
    """N-grams and a head for each request, at acceptances that fall or rise with the level."""
    levels = 4 if requests <= 3 else 3
    rates = rng.uniform(0.05, 0.98, (2, requests, 1)) ** rng.uniform(0.7, 1.3, (2, requests, levels))
    width = np.ones((2, requests), dtype=np.intp)
    if trees:
        width[1] = rng.choice([1, 3, 4], requests)
    debts = np.zeros((2, requests))
    if owed:
        debts[1] = rng.integers(0, 20, requests)
    proposer = np.repeat([[0], [1]], requests, axis=1)
    return offers(np.clip(rates, 0.01, 0.99), proposer, width, debts, nodes=10)


@pytest.mark.parametrize(("trees", "owed"), [(False, False), (True, False), (True, True)])
def test_who_drafts_is_chosen_within_two_percent_of_trying_all(trees, owed):
    """Two proposers, one of them with shared passes and trees and texts to catch up on; on the host's row costs. It is
    the best there is in nearly all cases.
    """
    rng = np.random.default_rng(1)
    shares = []
    for _ in range(100):
        requests = int(rng.integers(1, 5))
        eagle = (rng.uniform(0, 0.1), rng.uniform(0, 0.15), 0.0, 0.002 * owed)
        prices = host(
            int(rng.choice([requests, requests + 8, requests + 30])), ngram=(0, 0.005, 0, 0), eagle=eagle
        )
        offered = random_offers(rng, requests, trees=trees, owed=owed)
        shares.append(reached(offered, prices) / brute_force(offered, prices))
    assert min(shares) > 0.96
    assert sorted(shares)[1] > 0.98
    assert np.mean(shares) > 0.999


def test_looking_from_the_step_before_is_as_good():
    rng = np.random.default_rng(2)
    prices = host(20, ngram=(0, 0.005, 0, 0), eagle=(0.05, 0.05, 0, 0))
    near = None
    for _ in range(30):
        offered = random_offers(rng, 20, trees=False, owed=False)
        near = allocate(offered, prices, near=near)
        assert near.goodput > 0.995 * allocate(offered, prices).goodput


@given(st.integers(1, 4), st.floats(0.5, 4.0), st.randoms(use_true_random=False))
def test_a_step_with_drafts_takes_no_longer_than_its_bound(requests, bound, random):
    rng = np.random.default_rng(random.randrange(1 << 30))
    prices = host(requests, ngram=(0, 0.005, 0, 0))
    offered = offers(np.clip(rng.uniform(0, 1, (1, requests, 4)), 0.01, 0.99))
    assert allocate(offered, prices, bound=bound).seconds <= max(bound, prices.step[0])
    assert reached(offered, prices, bound=bound) == pytest.approx(brute_force(offered, prices, bound))


@given(st.lists(st.booleans(), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_who_must_draft_does_and_the_others_are_allocated_as_well_as_can_be_beside_it(held, random):
    rng = np.random.default_rng(random.randrange(1 << 30))
    prices = host(len(held), ngram=(0.1, 0.2, 0, 0))
    offered = offers(np.clip(rng.uniform(0, 1, (1, len(held), 3)), 0.01, 0.99), held=held)
    assert (allocate(offered, prices).k[held] > 0).all()
    assert reached(offered, prices) == pytest.approx(brute_force(offered, prices))


def test_of_many_equal_requests_exactly_so_many_are_taken_as_are_worth_it():
    """Requests that start from their class's estimate are all alike, and a step has room for some of them only."""
    step = np.array([1.0, 1.0, 1.0, 1.0, *[9.0] * 60])
    found = allocate(offers(np.full((1, 8, 4), 0.5)), Prices(step, *np.zeros((4, 1))))
    assert (found.rows, found.k.tolist()) == (3, [1, 1, 1, 0, 0, 0, 0, 0])


def test_a_pass_holds_up_everybody_so_who_is_alone_goes_further():
    """A step waits for the deepest draft: seven who gain nothing by it outvote one who does."""
    rates = np.full((1, 8, 4), 0.02)
    rates[:, 0] = 0.95
    prices = host(8, eagle=(0.0, 0.2, 0.0, 0.0))
    assert allocate(offers(rates[:, :1]), prices).k.tolist() == [4]
    assert allocate(offers(rates), prices).k.tolist() == [0] * 8


def test_what_must_be_read_before_is_paid_only_where_what_follows_is_worth_it():
    rates = np.full((1, 1, 4), 0.9)
    prices = host(1, eagle=(0.0, 0.02, 0.0, 0.01))
    assert allocate(offers(rates, owed=[[30]]), prices).k.tolist() == [4]
    assert allocate(offers(rates, owed=[[1000]]), prices).k.tolist() == [0]


def test_nothing_to_choose_from_is_a_plain_step():
    found = allocate(offers(np.zeros((2, 3, 4))), host(3))
    assert (found.k.tolist(), found.rows, found.tokens) == ([0, 0, 0], 0, 3.0)


def _own_price(found, offered, prices, answer):
    """What is answered at the price that comes of it."""
    for _ in range(20):
        before, found = found, answer(offered, prices, found.goodput)
        if found.goodput == before.goodput:
            break
    return found


@pytest.mark.parametrize("owed", [False, True])
def test_at_its_own_price_a_single_request_gets_what_trying_all_finds(owed):
    """With trees, debts and passes, whatever the rows cost: the numbers are looked up, not interpolated."""
    rng = np.random.default_rng(5)
    for _ in range(60):
        prices = Prices(
            1 + np.cumsum(np.concatenate([[0.0], rng.uniform(0, 0.2, 40)])),
            *np.array([(0, 0.005, 0, 0), (*rng.uniform(0, 0.1, 2), 0.01, 0.002)]).T,
        )
        offered = random_offers(rng, 1, trees=True, owed=owed)
        found = _own_price(plain(1, prices), offered, prices, alone)
        assert found.goodput == pytest.approx(brute_force(offered, prices), rel=1e-9)
        (tokens,), (seconds,) = worth(offered, prices, found.place[None], found.k[None])
        assert (tokens, seconds) == pytest.approx((found.tokens, found.seconds))


def test_at_its_own_price_a_batch_gets_nearly_what_trying_all_finds():
    rng = np.random.default_rng(6)
    shares = []
    for _ in range(100):
        requests = int(rng.integers(2, 5))
        eagle = (rng.uniform(0, 0.1), rng.uniform(0, 0.15), 0.002, 0.002)
        prices = host(int(rng.choice([requests, requests + 20])), ngram=(0, 0.005, 0, 0), eagle=eagle)
        offered = random_offers(rng, requests, trees=True, owed=True)
        found = plain(requests, prices)
        for _ in range(6):
            beside = round(found.rows * (requests - 1) / requests)
            found = at_price(offered, prices, found.goodput, beside)
        (tokens,), (seconds,) = worth(offered, prices, found.place[None], found.k[None])
        assert tokens == pytest.approx(found.tokens)
        assert seconds <= found.seconds * (1 + 1e-9)
        shares.append(found.goodput / brute_force(offered, prices))
    assert np.mean(shares) > 0.99
    assert sorted(shares)[5] > 0.97


def test_chains_of_one_proposer_are_allocated_as_any_others():
    """A second proposer, with whom nobody drafts, leads the same offers through the general way."""
    rng = np.random.default_rng(7)
    for _ in range(200):
        b, levels = int(rng.integers(2, 40)), int(rng.integers(1, 9))
        rates = rng.uniform(0.0, 0.99, (1, b, levels)) * (rng.random((1, b, 1)) < 0.9)
        offered = offers(rates, held=rng.random(b) < rng.choice([0.0, 0.2]))
        own = (*rng.choice([0.0, 0.03], 2), rng.choice([0.0, 0.01]), 0.0)
        base, most = int(rng.integers(1, 16)), int(rng.choice([20, 100, 400]))
        price, beside = rng.uniform(0.1, 20.0), int(rng.integers(0, 60))
        alone_there = at_price(offered, host(base, most, own=own), price, beside)
        two = at_price(offered, host(base, most, own=own, other=(1.0, 1.0, 0.0, 0.0)), price, beside)
        if two is None:
            assert alone_there is None
            continue
        assert alone_there.k.tolist() == two.k.tolist()
        assert alone_there[3:] == pytest.approx(two[3:])


def test_who_must_draft_does_at_any_price():
    prices = host(2, ngram=(0, 0.005, 0, 0))
    both = offers([[[0.02], [0.02]]], held=[True, False])
    assert at_price(both, prices, 10.0, 0).k.tolist() == [1, 0]
    one = offers([[[0.02]]], held=[True])
    assert alone(one, prices, 10.0).k.tolist() == [1]


def test_more_rows_than_there_are_is_no_answer():
    prices = host(2, most=3, ngram=(0, 0.0, 0, 0))
    offered = offers([[[0.99] * 4] * 3])
    assert at_price(offered, prices, 1e-6, 0) is None
    assert allocate(offered, prices).rows <= len(prices.step) - 1
