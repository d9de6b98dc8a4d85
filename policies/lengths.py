"""How far to draft for each request of a batch, where it is settled who drafts for it.

slot    one level of one request's draft: what is given out
key     by which slots are taken: first those of requests that must draft, then by gain for cost
limit   how many levels a proposer may draft in this step: each of them is a pass that all its requests share

A level never gains more than the one before it. So under given limits the best lengths come of taking slots in the
order of their keys, and it remains to be found how many: the goodput of every number is looked at. That is exact for
chains of one proposer, whatever rows cost. Where their cost is convex, the best goodput under a limit rises and then
falls with the limit, since the best surplus at a given price is concave in it: climbing finds the best limit.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]

_SWEEPS: Final = 2  # over the limits of several proposers, at most
_FEW: Final = 128  # slots up to which every limit is tried: there a step's cost may be as uneven as it likes
_NOTHING: Final = 1e-12  # seconds; so that a level which costs nothing has a key


class Prices(NamedTuple):
    """What a step costs, in seconds."""

    step: Floats  # with 0, 1, ... drafted rows beside those that there are anyway; never falls. No more are to be had
    fixed: Floats  # [P] by proposer; see policies.cost.DraftCost
    level: Floats  # [P]
    node: Floats  # [P]
    owed: Floats  # [P]

    def row(self, rows: int) -> float:
        """Seconds that a row more costs, about, where so many are drafted."""
        reach = max(rows // 4, 1)
        low, high = max(rows - reach, 0), min(rows + reach, len(self.step) - 1)
        return float(self.step[high] - self.step[low]) / max(high - low, 1)


class Drafts(NamedTuple):
    """One option for each of `b` requests."""

    gains: (
        Floats  # [K, b] tokens that each level adds; 0 where it may not be taken, or where there is no option
    )
    proposer: Ints  # [b] an index into the prices
    width: Ints  # [b] rows of a level: more than one in a tree
    owed: Floats  # [b] tokens of the text to be read before
    held: Bools  # [b] must draft, as far as gains and bound allow
    nodes: int  # rows of a tree, at most: levels beyond have no more of them


class Lengths(NamedTuple):
    """The best number of slots under some limits, and what is expected of the step."""

    tokens: float
    seconds: float
    rows: int  # drafted
    taken: int  # slots
    least: float  # key of the last of them
    limits: Ints  # [P]

    @property
    def goodput(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


class _Order(NamedTuple):
    """Slots in the order in which they are taken; entry n is of the first n + 1 together."""

    keys: Floats  # of the last of them
    gained: Floats
    rows: Ints
    seconds: Floats  # without passes


class Slots:
    """All slots of the drafts, and what they cost."""

    def __init__(self, drafts: Drafts, prices: Prices, bound: float | None = None) -> None:
        """bound: seconds that a step with drafts may take."""
        self._drafts, self._prices, self._bound = drafts, prices, bound
        levels, self._requests = drafts.gains.shape
        can = drafts.gains[0] > 0
        held = drafts.held & can
        self._present = np.flatnonzero(np.bincount(drafts.proposer, can, len(prices.level))).tolist()
        self._held = int(np.count_nonzero(held))
        self._few = levels * self._requests <= _FEW
        self._keys = drafts.gains
        self._alike = not (self._held or len(self._present) != 1 or self._differ(can))
        if not self._alike:
            self._rows = rows_of_levels(levels, drafts.width, drafts.nodes)  # [K, b]
            self._seconds = self._beside_rows()  # [K, b] without rows and passes
            self._keys = self._per_second(held)

    def best(self, near: Ints | None = None) -> Lengths:
        """The best that is found. near: limits [P] to look from."""
        found = self.under(self._start(near))
        for _ in range(_SWEEPS if len(self._present) > 1 else 1):
            before = found.goodput
            for p in self._present:
                found = self._along(found, p)
            if found.goodput <= before:
                break
        return found

    def levels(self, found: Lengths) -> Ints:
        """[b] of each draft. Of slots with equal keys, lower levels and those who came earlier are taken first."""
        if not found.taken:
            return np.zeros(self._requests, dtype=np.intp)
        keys = self._inside(found.limits)
        taken = keys > found.least
        left = found.taken - int(np.count_nonzero(taken))
        taken.flat[np.flatnonzero(keys == found.least)[:left]] = True
        levels: Ints = taken.sum(axis=0)
        return levels

    def under(self, limits: Ints) -> Lengths:
        """The best number of slots under these limits; none where nothing is worth its cost, or fits the bound."""
        order = self._by_gain(limits) if self._alike else self._by_key(limits)
        seconds = order.seconds + self._passes(limits)
        tokens = order.gained + self._requests
        worth = tokens / seconds
        if self._bound is not None:
            worth[seconds > self._bound] = -np.inf
        least = self._plain(limits)
        if 0 < self._held <= len(worth) and np.isfinite(worth[self._held - 1]):
            worth[: self._held - 1] = -np.inf
        elif worth.max(initial=-np.inf) <= least.goodput:
            return least
        n = int(worth.argmax())
        return Lengths(
            float(tokens[n]), float(seconds[n]), int(order.rows[n]), n + 1, float(order.keys[n]), limits
        )

    def _plain(self, limits: Ints) -> Lengths:
        return Lengths(self._requests, float(self._prices.step[0]), 0, 0, np.inf, limits)

    def _differ(self, can: Bools) -> bool:
        """Whether slots cost differently, or more than a row."""
        drafts, prices = self._drafts, self._prices
        return bool(
            (drafts.width[can] != 1).any() or prices.node.any() or (prices.owed.any() and drafts.owed.any())
        )

    def _beside_rows(self) -> Floats:
        drafts, prices = self._drafts, self._prices
        seconds = self._rows * prices.node[drafts.proposer]
        seconds[0] += drafts.owed * prices.owed[drafts.proposer]
        return seconds

    def _per_second(self, held: Bools) -> Floats:
        """[K, b] keys. What must be read before the first level is worth it if the levels after it make it so: the
        first has the key of the best of the drafts that begin with it.
        """
        drafts = self._drafts
        costs = np.maximum(self._seconds + self._rows * self._prices.row(self._requests), _NOTHING)
        keys = drafts.gains / costs
        keys[0] = (np.cumsum(drafts.gains, axis=0) / np.cumsum(costs, axis=0)).max(axis=0)
        keys = np.minimum.accumulate(keys, axis=0)
        keys[0, held] = np.inf
        return keys

    def _start(self, near: Ints | None) -> Ints:
        levels = len(self._keys)
        if near is None or len(near) != len(self._prices.level):
            return np.full(len(self._prices.level), levels, dtype=np.intp)
        return np.clip(near, 1, levels)

    def _along(self, found: Lengths, p: int) -> Lengths:
        """The best limit of one proposer, those of the others as they are."""
        if self._prices.fixed[p] <= 0 and self._prices.level[p] <= 0:
            return (
                found
                if found.limits[p] == len(self._keys)
                else self.under(_with(found.limits, p, len(self._keys)))
            )
        if self._few:
            return self._tried(found, p)
        start = int(found.limits[p])
        found = self._climbed(found, p, -1)
        return found if found.limits[p] != start else self._climbed(found, p, 1)

    def _tried(self, found: Lengths, p: int) -> Lengths:
        for limit in range(self._fewest, len(self._keys) + 1):
            if limit != found.limits[p]:
                other = self.under(_with(found.limits, p, limit))
                found = other if other.goodput > found.goodput else found
        return found

    def _climbed(self, found: Lengths, p: int, way: int) -> Lengths:
        while self._fewest <= (limit := int(found.limits[p]) + way) <= len(self._keys):
            other = self.under(_with(found.limits, p, limit))
            if other.goodput <= found.goodput:
                break
            found = other
        return found

    @property
    def _fewest(self) -> int:
        """Of the levels that a limit may allow. None at all is looked at anyway, where only one proposer drafts."""
        return 1 if self._held or len(self._present) == 1 else 0

    def _passes(self, limits: Ints) -> float:
        """Seconds of what all requests of a proposer share."""
        drafting = [p for p in self._present if limits[p]]
        prices = self._prices
        return float(sum(prices.fixed[p] + limits[p] * prices.level[p] for p in drafting))

    def _inside(self, limits: Ints) -> Floats:
        """[K, b] keys of the slots that the limits allow, none of the others."""
        if len(self._present) == 1:
            return self._keys[: limits[self._present[0]]]
        beyond = np.arange(len(self._keys))[:, None] >= limits[self._drafts.proposer]
        return np.where(beyond, 0.0, self._keys)

    def _by_gain(self, limits: Ints) -> _Order:
        """Slots that cost a row each and nothing else."""
        keys = np.sort(self._inside(limits), axis=None)[::-1]
        rows = np.arange(1, len(keys) + 1)
        return _Order(keys, np.cumsum(keys), rows, self._prices.step[1 : len(keys) + 1])

    def _by_key(self, limits: Ints) -> _Order:
        keys = self._inside(limits)
        slots = np.flatnonzero(keys > 0)
        slots = slots[np.argsort(-keys.reshape(-1)[slots], kind="stable")]
        rows = np.cumsum(self._rows.reshape(-1)[slots])
        fit = int(np.searchsorted(rows, len(self._prices.step)))
        slots, rows = slots[:fit], rows[:fit]
        seconds = self._prices.step[rows] + np.cumsum(self._seconds.reshape(-1)[slots])
        return _Order(
            keys.reshape(-1)[slots], np.cumsum(self._drafts.gains.reshape(-1)[slots]), rows, seconds
        )


def rows_of_levels(levels: int, width: Ints, nodes: int) -> Ints:
    """[K, ...] rows that each level adds: a chain one each, a tree as many as it is wide while nodes are left."""
    before = np.arange(levels).reshape(-1, *[1] * width.ndim) * width
    return np.where(width > 1, np.clip(nodes - before, 0, width), 1)


def _with(limits: Ints, p: int, limit: int) -> Ints:
    changed = limits.copy()
    changed[p] = limit
    return changed
