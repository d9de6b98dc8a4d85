"""Who drafts for each request of a running batch, and how far, so that the batch as a whole goes fastest.

goodput   tokens that a step is expected to commit, over the seconds that it takes
level     of a request's draft: its j-th adds `gain` tokens on average, the product of the acceptances up to it
surplus   of an option: what it gains less what it costs, at the going price of a second, which is the goodput

Of several options for a request, the one with the largest surplus is taken (Dinkelbach, "On nonlinear fractional
programming", 1967: the ratio is best where the largest surplus at its own price is none). Prices follow from lengths
(`policies.lengths`), and lengths from options; a few rounds of both settle it, and the best that was seen is kept. With
one option for each request and chains of one proposer that is the best there is; with several it is within a few
percent, as the tests say.
"""

from collections.abc import Iterator
from math import inf
from typing import Final, NamedTuple

import numpy as np

from policies.lengths import Bools, Drafts, Floats, Ints, Prices, rows_of_levels, slots

__all__ = ["Allocation", "Offers", "Prices", "allocate", "plain"]

_ROUNDS: Final = 3  # of prices and options, at most
_LEAST: Final = -1e300  # a surplus, so that what cannot be had adds up
_SWEEPS: Final = 2  # over the limits of all proposers: one that stops drafting makes room for another


class Offers(NamedTuple):
    """What there is to choose from for `b` requests: up to `O` options each, of up to `K` levels."""

    gains: Floats  # [K, O, b] tokens that each level adds; 0 where it may not be taken or there is no option
    proposer: Ints  # [O, b] an index into the prices
    width: Ints  # [O, b] rows of a level
    owed: Floats  # [O, b] tokens of the text to be read before
    held: Bools  # [b] must draft, as far as gains and bound allow
    nodes: int  # rows of a tree, at most

    def at(self, place: Ints) -> Drafts:
        """One option of each request."""
        gains, proposer, width, owed, held, nodes = self
        if gains.shape[1] == 1:
            return Drafts(gains[:, 0], proposer[0], width[0], owed[0], held, nodes)
        mine = place, np.arange(len(place))
        gains = np.ascontiguousarray(gains[:, *mine])
        return Drafts(gains, proposer[mine], width[mine], owed[mine], held, nodes)


class Allocation(NamedTuple):
    """Who drafts for each request, how far, and what is expected of the step."""

    place: Ints  # [b] of the option; of no meaning where k is 0
    k: Ints  # [b] levels
    limits: Ints  # [P] see policies.lengths
    rows: int  # drafted
    tokens: float
    seconds: float

    @property
    def goodput(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def allocate(
    offers: Offers, prices: Prices, *, bound: float | None = None, near: Allocation | None = None
) -> Allocation:
    """The best that is found. bound: seconds that the step may take. near: of a step before, to look from there."""
    limits = None if near is None else near.limits
    found = [_given(offers, place, prices, bound, limits) for place in _starts(offers, prices, near)]
    best = max(found, key=lambda each: each.goodput)
    for _ in range(_ROUNDS if offers.gains.shape[1] > 1 else 0):
        place = _best_options(_surplus(offers, prices, best.goodput, best.rows), offers, prices, best.goodput)
        better = _given(offers, place, prices, bound, best.limits)
        if better.goodput <= best.goodput:
            break
        best = better
    return best


def at_price(offers: Offers, prices: Prices, price: float, beside: int) -> Allocation | None:
    """What brings the largest surplus where a second has this price: each request by itself, but for the passes that
    they share. beside: rows that the drafts of all others have, about. None where there are not so many rows.
    """
    beside = min(beside, len(prices.step) - 1)
    if _are_chains_of_one(offers, prices):
        return _chains_at_price(offers, prices, price, beside)
    rows, extra = _rows_and_extra(offers, prices)
    gained = np.empty((len(rows), *offers.proposer.shape))
    gained[0] = 0.0
    for level, gain in enumerate(offers.gains):
        np.add(gained[level], gain, out=gained[level + 1])
    cost = prices.step.take(rows + beside, mode="clip") - prices.step[beside] + extra
    surplus = gained - price * cost
    if offers.held.any():
        surplus[1:, offers.gains[0] <= 0] = -np.inf
        surplus[0, :, offers.held] = -np.inf
    passes = _limited(surplus, offers, prices, price)
    b = len(offers.held)
    k, place = np.divmod(surplus.reshape(-1, b).argmax(axis=0), len(offers.proposer))
    mine = k, place, np.arange(b)
    total = int((k if rows.size == len(rows) else rows[mine]).sum())
    if total >= len(prices.step):
        return None
    beside_rows = np.broadcast_to(extra, surplus.shape)[mine].sum() if extra.any() else 0.0
    seconds = prices.step[total] + passes + beside_rows
    limits = np.zeros_like(prices.level, dtype=np.intp)
    return Allocation(place, k, limits, total, float(b + gained[mine].sum()), float(seconds))


def _are_chains_of_one(offers: Offers, prices: Prices) -> bool:
    """Whether there is one proposer, with a chain for each request and nothing to be read before."""
    one = len(offers.proposer) == len(prices.level) == 1
    return one and not prices.owed.any() and int(offers.width.max(initial=1)) <= 1


def _chains_at_price(offers: Offers, prices: Prices, price: float, beside: int) -> Allocation | None:
    """The same for chains of one proposer, where a level has one cost for all requests."""
    gains, held = offers.gains[:, 0], offers.held
    levels, b = np.arange(len(gains) + 1), len(held)
    gained = np.zeros((len(levels), b))
    np.cumsum(gains, axis=0, out=gained[1:])
    cost = prices.step.take(levels + beside, mode="clip") - prices.step[beside] + levels * prices.node[0]
    surplus = gained - (price * cost)[:, None]
    must = bool(held.any())
    if must:
        surplus[1:, gains[0] <= 0] = -np.inf
        surplus[0, held] = -np.inf
    limit, passes = len(gains), prices.passes(0, levels)
    if not prices.free[0]:
        together = np.maximum.accumulate(surplus, axis=0)
        if must:
            np.maximum(together, _LEAST, out=together)
        limit = int((together.sum(axis=1) - price * passes).argmax())
    k = surplus[: limit + 1].argmax(axis=0)
    total = int(k.sum())
    if total >= len(prices.step):
        return None
    place, limits = np.zeros(b, dtype=np.intp), np.zeros(1, dtype=np.intp)
    tokens = b + gained[k, np.arange(b)].sum()
    seconds = prices.step[total] + passes[limit] + total * prices.node[0]
    return Allocation(place, k, limits, total, float(tokens), float(seconds))


def alone(offers: Offers, prices: Prices, price: float) -> Allocation:
    """The same for a single request, whose passes are all its own. Arrays would take most of the time here."""
    step, rows_at_all = prices.step.tolist(), len(prices.step)
    costs = np.array([prices.fixed, prices.level, prices.node, prices.owed]).T.tolist()
    gains = offers.gains[:, :, 0].T.tolist()
    columns = (each[:, 0].tolist() for each in (offers.proposer, offers.width, offers.owed))
    best = (-inf if offers.held[0] and any(each[0] > 0 for each in gains) else 0.0, 0, 0, 0, 0.0, step[0])
    for place, (added, p, width, debt) in enumerate(zip(gains, *columns, strict=True)):
        fixed, level, node, owed = costs[p]
        gained = 0.0
        for k, gain in enumerate(added, 1):
            rows = k if width == 1 else min(width * k, offers.nodes)
            if gain <= 0.0 or rows >= rows_at_all:
                break
            gained += gain
            seconds = step[rows] + fixed + k * level + rows * node + debt * owed
            surplus = gained - price * (seconds - step[0])
            if surplus > best[0]:
                best = surplus, place, k, rows, gained, seconds
    _, place, k, rows, gained, seconds = best
    limits = np.zeros_like(prices.level, dtype=np.intp)
    return Allocation(np.array([place]), np.array([k]), limits, rows, 1.0 + gained, seconds)


def _rows_and_extra(offers: Offers, prices: Prices) -> tuple[Ints, Floats]:
    """(rows, seconds beside those of rows and passes) of each option with up to 0, 1, ... levels: [K + 1, O, b], or of
    as many that they go with it.
    """
    rows = np.arange(len(offers.gains) + 1)[:, None, None]
    if int(offers.width.max(initial=1)) > 1:
        rows = np.where(offers.width > 1, np.minimum(rows * offers.width, offers.nodes), rows)
    extra = np.zeros((1, 1, 1))
    if prices.node.any():
        extra = rows * prices.node[offers.proposer]
    if prices.owed.any():
        extra = extra + (np.arange(len(rows)) > 0)[:, None, None] * (
            prices.owed[offers.proposer] * offers.owed
        )
    return rows, extra


def _limited(surplus: Floats, offers: Offers, prices: Prices, price: float) -> float:
    """Seconds of the passes that are worth it. What lies beyond is taken out of the surplus [K + 1, O, b]."""
    every, seconds, held = np.arange(len(surplus)), 0.0, bool(offers.held.any())
    for p in np.flatnonzero(~prices.free).tolist():
        mine = offers.proposer == p
        if not mine.any():
            continue
        together = _up_to(surplus, mine)
        if held:
            together = np.maximum(together, _LEAST)
        passes = prices.passes(p, every)
        limit = int((together.sum(axis=1) - price * passes).argmax())
        np.copyto(surplus[limit + 1 :], -np.inf, where=mine)
        seconds += float(passes[limit])
    return seconds


def _up_to(surplus: Floats, mine: Bools) -> Floats:
    """[K + 1, b] the best of each request, where those of its options that are `mine` [O, b] have up to so many levels.
    Mostly an option of one proposer has the same place in all requests.
    """
    places = mine.all(axis=1)
    if (places == mine.any(axis=1)).all():
        own, others = surplus[:, places], surplus[:, ~places]
    else:
        own, others = np.where(mine, surplus, -np.inf), np.where(mine, -np.inf, surplus)
    best: Floats = own.max(axis=1)
    for level in range(1, len(best)):
        np.maximum(best[level], best[level - 1], out=best[level])
    if others.shape[1]:
        np.maximum(best, others.max(axis=(0, 1)), out=best)
    return best


def plain(requests: int, prices: Prices) -> Allocation:
    """No drafts at all."""
    nothing = np.zeros(requests, dtype=np.intp)
    limits = np.zeros(len(prices.level), dtype=np.intp)
    return Allocation(nothing, nothing, limits, 0, float(requests), float(prices.step[0]))


def _given(
    offers: Offers, place: Ints, prices: Prices, bound: float | None, limits: Ints | None
) -> Allocation:
    """The best lengths, where each request has the option at its place."""
    all_slots = slots(offers.at(place), prices, bound)
    found = all_slots.best(limits)
    return Allocation(place, all_slots.levels(found), found.limits, found.rows, found.tokens, found.seconds)


def _starts(offers: Offers, prices: Prices, near: Allocation | None) -> Iterator[Ints]:
    """Options at the last prices; where there are none yet, each proposer's best alone."""
    if offers.gains.shape[1] == 1:
        yield np.zeros(len(offers.held), dtype=np.intp)
    elif near is not None:
        yield _best_options(_surplus(offers, prices, near.goodput, near.rows), offers, prices, near.goodput)
    else:
        surplus = _surplus(offers, prices, len(offers.held) / float(prices.step[0]), 0)[-1]
        for p in np.unique(offers.proposer):
            yield np.where(offers.proposer == p, surplus, -np.inf).argmax(axis=0)


def _surplus(offers: Offers, prices: Prices, price: float, rows: int) -> Floats:
    """[K + 1, O, b] of each option with up to 0, 1, ... levels, passes left out. -inf: not to be chosen."""
    per_row = price * (prices.row(rows) + prices.node)[offers.proposer]
    if int(offers.width.max(initial=1)) > 1:
        per_row = per_row * rows_of_levels(len(offers.gains), offers.width, offers.nodes)
    levels = np.empty((len(offers.gains) + 1, *offers.proposer.shape))
    levels[0] = 0.0
    (offers.gains - per_row).cumsum(axis=0, out=levels[1:])
    if prices.owed.any():
        levels[1:] -= (price * prices.owed)[offers.proposer] * offers.owed
    if offers.held.any():
        levels[1:, offers.gains[0] <= 0] = -np.inf
        levels[0, :, offers.held] = -np.inf
    found: Floats = np.maximum.accumulate(levels, axis=0, out=levels)
    return found


def _best_options(surplus: Floats, offers: Offers, prices: Prices, price: float) -> Ints:
    """[b] places of the best options under the limits that are best for all requests together."""
    reached, every = surplus[-1], np.arange(len(surplus))
    costly = [p for p in np.flatnonzero(~prices.free).tolist() if (offers.proposer == p).any()]
    for p in costly * min(_SWEEPS, len(costly)):
        passes = price * prices.passes(p, every)
        under = np.where(offers.proposer == p, surplus, reached)  # [K + 1, O, b]
        reached = under[int((_total(under) - passes).argmax())]
    best: Ints = np.where(offers.gains[0] > 0, reached, -np.inf).argmax(axis=0)
    return best


def _total(surplus: Floats) -> Floats:
    """[K + 1] of all requests' best options; one that must draft and cannot counts nothing."""
    best = surplus.max(axis=1)
    best[best == -np.inf] = 0.0
    total: Floats = best.sum(axis=1)
    return total
