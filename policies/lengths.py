"""How far to draft for each request of a batch, where it is settled who drafts for it.

slot    one level of one request's draft: what is given out
key     by which slots are taken: first those of requests that must draft, then by gain for cost
limit   how many levels a proposer may draft in this step: each of them is a pass that all its requests share

A level never gains more than the one before it. So under given limits the best lengths come of taking slots in the
order of their keys, and it remains to be found how many: the goodput of every number is looked at. That is exact for
chains of one proposer, whatever rows cost. Where their cost is convex, the best goodput under a limit rises and then
falls with the limit, since the best surplus at a given price is concave in it: climbing finds the best limit.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]

_SWEEPS: Final = 2  # over the limits of several proposers, at most
_FEW: Final = 128  # slots up to which every limit is tried: there a step's cost may be as uneven as it likes
_NOTHING: Final = 1e-12  # seconds; so that a level which costs nothing has a key
_LATER: Final = 1e-9  # relative: by so much a level comes after an equal one below it


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
    limits: Ints  # [P]

    @property
    def goodput(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


class Slots:
    """All slots of the drafts in the order in which they are taken, and what they cost."""

    def __init__(self, drafts: Drafts, prices: Prices, bound: float | None = None) -> None:
        """bound: seconds that a step with drafts may take."""
        self._prices, self._bound = prices, bound
        self._levels, self._requests = drafts.gains.shape
        can = drafts.gains[0] > 0
        held = drafts.held & can
        self._held = int(np.count_nonzero(held))
        self._present = np.flatnonzero(np.bincount(drafts.proposer, can, len(prices.level))).tolist()
        self._alike = not (self._held or len(self._present) > 1 or _differ(drafts, prices, can))
        keys = drafts.gains
        if not self._alike:
            rows = rows_of_levels(self._levels, drafts.width, drafts.nodes)
            seconds = _beside_rows(drafts, prices, rows)
            keys = _per_second(drafts, seconds + rows * prices.row(self._requests), held)
        order = _falling(keys)
        self._level, self._request = np.divmod(order, self._requests)
        self._gained = drafts.gains.take(order)
        if not self._alike:
            self._proposer = drafts.proposer[self._request]
            self._rows, self._seconds = rows.take(order), seconds.take(order)

    def best(self, near: Ints | None = None, way: int = 0) -> Lengths:
        """The best that is found. near: limits [P] to look from; `way`, 1 or -1: in this direction alone, which is
        enough for who asks in every step and goes the other way in the next one.
        """
        plain = Lengths(self._requests, float(self._prices.step[0]), 0, 0, self._start(near))
        if not self._present:
            return plain
        found = plain._replace(tokens=0)
        for _ in range(_SWEEPS if len(self._present) > 1 and not way else 1):
            before = found.goodput
            for p in self._present:
                found = self._along(found.limits, p, way)
            if found.goodput <= before:
                break
        if found.goodput > plain.goodput or 0 < self._held <= found.taken:
            return found
        return plain._replace(limits=found.limits)

    def levels(self, found: Lengths) -> Ints:
        """[b] of each draft."""
        taken = np.flatnonzero(self._inside(found.limits[None])[0])[: found.taken]
        levels: Ints = np.bincount(self._request[taken], minlength=self._requests)
        return levels

    def under(self, limits: Ints) -> Lengths:
        """The best number of slots under the best of some limits [n, P]; no tokens where nothing fits."""
        inside = self._inside(limits)
        tokens = np.cumsum(np.where(inside, self._gained, 0.0), axis=1) + self._requests
        rows = np.cumsum(inside if self._alike else np.where(inside, self._rows, 0), axis=1)
        fit = rows < len(self._prices.step)
        seconds = self._prices.step.take(rows, mode="clip") + self._passes(limits)[:, None]
        if not self._alike:
            seconds += np.cumsum(np.where(inside, self._seconds, 0.0), axis=1)
        if self._bound is not None:
            fit &= seconds <= self._bound
        if self._held:
            fit[fit[:, self._held - 1], : self._held - 1] = False
        worth = np.where(fit, tokens / seconds, 0.0)
        at = divmod(int(worth.argmax()), worth.shape[1])
        if not fit[at]:
            return Lengths(0, float(self._prices.step[0]), 0, 0, limits[at[0]])
        taken = int(np.count_nonzero(inside[at[0], : at[1] + 1]))
        return Lengths(float(tokens[at]), float(seconds[at]), int(rows[at]), taken, limits[at[0]])

    def _inside(self, limits: Ints) -> Bools:
        """[n, slots] whether limits [n, P] allow a slot."""
        of_slot = limits[:, self._present] if self._alike else limits[:, self._proposer]
        allowed: Bools = self._level < of_slot
        return allowed

    def _start(self, near: Ints | None) -> Ints:
        if near is None or len(near) != len(self._prices.level):
            return np.full(len(self._prices.level), self._levels, dtype=np.intp)
        return np.clip(near, self._fewest, self._levels)

    def _along(self, limits: Ints, p: int, way: int) -> Lengths:
        """The best limit of one proposer, those of the others as they are."""
        if self._prices.fixed[p] <= 0 and self._prices.level[p] <= 0:
            return self._under(limits, p, [self._levels])
        if self._levels * self._requests <= _FEW:
            return self._under(limits, p, range(self._fewest, self._levels + 1))
        start = int(limits[p])
        if way:
            further = min(max(start + way, self._fewest), self._levels)
            return self._under(limits, p, [start, further])
        return self._climbed(limits, p)

    def _climbed(self, limits: Ints, p: int) -> Lengths:
        start = int(limits[p])
        found = self._under(limits, p, [start])
        for way in (-1, 1):
            while self._fewest <= (limit := int(found.limits[p]) + way) <= self._levels:
                other = self._under(limits, p, [limit])
                if other.goodput < found.goodput:
                    break
                found = other
            if found.limits[p] != start:
                break
        return found

    def _under(self, limits: Ints, p: int, those: Sequence[int]) -> Lengths:
        """The best of those limits of one proposer."""
        tried = np.repeat(limits[None], len(those), axis=0)
        tried[:, p] = those
        return self.under(tried)

    @property
    def _fewest(self) -> int:
        """Of the levels that a limit may allow. None at all is looked at anyway, where only one proposer drafts."""
        return 1 if self._held or len(self._present) == 1 else 0

    def _passes(self, limits: Ints) -> Floats:
        """[n] seconds of what all requests of a proposer share."""
        mine, prices = limits[:, self._present], self._prices
        seconds: Floats = (mine > 0) @ prices.fixed[self._present] + mine @ prices.level[self._present]
        return seconds


def rows_of_levels(levels: int, width: Ints, nodes: int) -> Ints:
    """[K, ...] rows that each level adds: a chain one each, a tree as many as it is wide while nodes are left."""
    if int(width.max(initial=1)) == 1:
        return np.ones((levels, *width.shape), dtype=np.intp)
    before = np.arange(levels).reshape(-1, *[1] * width.ndim) * width
    return np.where(width > 1, np.clip(nodes - before, 0, width), 1)


def _falling(keys: Floats) -> Ints:
    """Places of the keys [K, b] that are above 0, the largest first; of equal keys of one request, the lowest level."""
    later = 1.0 - _LATER * np.arange(len(keys))
    flat = (keys * later[:, None]).reshape(-1)
    return np.argsort(-flat)[: np.count_nonzero(flat > 0)]


def _differ(drafts: Drafts, prices: Prices, can: Bools) -> bool:
    """Whether slots cost differently, or more than a row."""
    return bool(
        (drafts.width[can] != 1).any() or prices.node.any() or (prices.owed.any() and drafts.owed.any())
    )


def _beside_rows(drafts: Drafts, prices: Prices, rows: Ints) -> Floats:
    """[K, b] seconds of slots without rows and passes."""
    seconds: Floats = rows * prices.node[drafts.proposer]
    seconds[0] += drafts.owed * prices.owed[drafts.proposer]
    return seconds


def _per_second(drafts: Drafts, seconds: Floats, held: Bools) -> Floats:
    """[K, b] keys. What must be read before the first level is worth it if the levels after it make it so: the first
    has the key of the best of the drafts that begin with it.
    """
    costs = np.maximum(seconds, _NOTHING)
    keys = drafts.gains / costs
    keys[0] = (np.cumsum(drafts.gains, axis=0) / np.cumsum(costs, axis=0)).max(axis=0)
    keys = np.minimum.accumulate(keys, axis=0)
    keys[0, held] = np.inf
    return keys
