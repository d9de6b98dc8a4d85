"""How far to draft for each request of a batch, where it is settled who drafts for it.

slot    one level of one request's draft: what is given out
key     by which slots are taken: first those of requests that must draft, then by gain for cost
limit   how many levels a proposer may draft in this step: each of them is a pass that all its requests share

A level never gains more than the one before it. So under given limits the best lengths come of taking slots in the
order of their keys, and it remains to be found how many: the goodput of every number is looked at. That is exact for
chains of one proposer, whatever rows cost. Where their cost is convex, the best goodput under a limit rises and then
falls with the limit, since the best surplus at a given price is concave in it: climbing finds the best limit.
"""

from collections.abc import Collection
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

    @property
    def free(self) -> Bools:
        """[P] whether a proposer's passes cost nothing, so that nothing speaks against deep ones."""
        return (self.fixed <= 0) & (self.level <= 0)

    def passes(self, p: int, levels: Ints) -> Floats:
        """[n] seconds of what a proposer's drafts share in a step, the deepest of them of so many levels [n]."""
        seconds: Floats = self.fixed[p] * (levels > 0) + self.level[p] * levels
        return seconds

    def row(self, rows: int) -> float:
        """Seconds that a row more costs, about, where so many are drafted, or as many as can be."""
        rows = min(rows, len(self.step) - 1)
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
    least: float  # gain of the last of them
    limits: Ints  # [P]

    @property
    def goodput(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def slots(drafts: Drafts, prices: Prices, bound: float | None = None) -> "Slots":
    """All slots of the drafts. bound: seconds that a step with drafts may take."""
    can = drafts.gains[0] > 0
    search = _Search(drafts, prices, bound, np.flatnonzero(np.bincount(drafts.proposer[can])).tolist())
    if drafts.held.any() or len(search.present) > 1 or _differ(drafts, prices, can):
        return _Mixed(search, can)
    return _Alike(search)


class _Search(NamedTuple):
    """What is looked through."""

    drafts: Drafts
    prices: Prices
    bound: float | None
    present: list[int]  # proposers of drafts that may be taken

    def passes(self, limits: Ints) -> Floats:
        """[n, 1] seconds of what all requests of a proposer share, under limits [n, P]."""
        mine, prices = limits[:, self.present], self.prices
        seconds: Floats = (mine > 0) @ prices.fixed[self.present] + mine @ prices.level[self.present]
        return seconds[:, None]


class Slots:
    """The slots of some drafts, in the order in which they are taken."""

    def __init__(self, search: _Search, held: int) -> None:
        """held: how many of them must be taken."""
        self._search, self._prices = search, search.prices
        self._levels, self._requests = search.drafts.gains.shape
        self._held = held
        # Of the levels that a limit may allow. None at all is looked at anyway, where only one proposer drafts.
        self._fewest = 1 if held or len(search.present) == 1 else 0

    def under(self, limits: Ints) -> Lengths:
        """The best number of slots under the best of some limits [n, P]; no tokens where nothing fits."""
        raise NotImplementedError

    def levels(self, found: Lengths) -> Ints:
        """[b] of each draft."""
        raise NotImplementedError

    def best(self, near: Ints | None = None) -> Lengths:
        """The best that is found. near: limits [P] to look from."""
        limits = self._start(near)
        plain = Lengths(self._requests, float(self._prices.step[0]), 0, 0, 0.0, limits)
        if not self._search.present:
            return plain
        found = self._along_all(limits)
        if found.goodput > plain.goodput or 0 < self._held <= found.taken:
            return found
        return plain._replace(limits=found.limits)

    def _nothing(self, limits: Ints) -> Lengths:
        """Where nothing fits."""
        return Lengths(0, float(self._prices.step[0]), 0, 0, 0.0, limits)

    def _start(self, near: Ints | None) -> Ints:
        prices = self._prices
        if near is None or len(near) != len(prices.level):
            return np.full(len(prices.level), self._levels)
        limits = np.minimum(np.maximum(near, self._fewest), self._levels)
        limits[prices.free] = self._levels
        return limits

    def _along_all(self, limits: Ints) -> Lengths:
        """Along the limits of all proposers whose passes cost something, one after another."""
        those = [p for p in self._search.present if not self._prices.free[p]]
        if not those:
            return self.under(limits[None])
        before = 0.0
        for _ in range(_SWEEPS if len(those) > 1 else 1):
            for p in those:
                found = self._along(limits, p)
                limits = found.limits
            if found.goodput <= before:
                break
            before = found.goodput
        return found

    def _along(self, limits: Ints, p: int) -> Lengths:
        """The best limit of one proposer, those of the others as they are."""
        if self._levels * self._requests <= _FEW:
            return self._of(limits, p, range(self._fewest, self._levels + 1))
        return self._climbed(limits, p)

    def _climbed(self, limits: Ints, p: int) -> Lengths:
        start = int(limits[p])
        found = self._of(limits, p, [start])
        for way in (-1, 1):
            while self._fewest <= (limit := int(found.limits[p]) + way) <= self._levels:
                other = self._of(limits, p, [limit])
                if other.goodput < found.goodput:
                    break
                found = other
            if found.limits[p] != start:
                break
        return found

    def _of(self, limits: Ints, p: int, those: Collection[int]) -> Lengths:
        """The best of those limits of one proposer."""
        tried = np.repeat(limits[None], len(those), axis=0)
        tried[:, p] = list(those)
        return self.under(tried)


class _Alike(Slots):
    """Chains of one proposer: each slot costs a row and nothing else, and is known by what it gains."""

    def __init__(self, search: _Search) -> None:
        super().__init__(search, 0)
        self._gains = search.drafts.gains
        self._rows = min(self._gains.size, len(search.prices.step) - 1)

    def under(self, limits: Ints) -> Lengths:
        """See Slots."""
        keys = self._inside(limits).reshape(len(limits), -1)
        keys.sort(axis=1)
        keys = keys[:, : -self._rows - 1 : -1]
        tokens = keys.cumsum(axis=1)
        tokens += self._requests
        seconds = self._search.prices.step[1 : self._rows + 1] + self._search.passes(limits)
        worth = tokens / seconds
        if self._search.bound is not None:
            worth[seconds > self._search.bound] = 0.0
        n, last = divmod(int(worth.argmax()), worth.shape[1])
        if not worth[n, last]:
            return self._nothing(limits[n])
        at, taken = (n, last), last + 1
        return Lengths(float(tokens[at]), float(seconds[at]), taken, taken, float(keys[at]), limits[n])

    def levels(self, found: Lengths) -> Ints:
        """See Slots. Of slots with equal gains, lower levels and those who came earlier are taken first."""
        if not found.taken:
            return np.zeros(self._requests, dtype=np.intp)
        keys = self._gains[: found.limits[self._search.present[0]]]
        levels: Ints = (keys > found.least).sum(axis=0)
        if left := found.taken - int(levels.sum()):
            levels += np.bincount(
                np.flatnonzero(keys == found.least)[:left] % self._requests, minlength=self._requests
            )
        return levels

    def _inside(self, limits: Ints) -> Floats:
        """[n, K, b] gains of what the limits [n, P] allow."""
        (p,) = self._search.present
        allowed = np.arange(self._levels)[:, None] < limits[:, p, None, None]
        return np.where(allowed, self._gains, 0.0)


class _Mixed(Slots):
    """Slots of all kinds."""

    def __init__(self, search: _Search, can: Bools) -> None:
        drafts, prices = search.drafts, search.prices
        held = drafts.held & can
        super().__init__(search, int(np.count_nonzero(held)))
        rows = rows_of_levels(self._levels, drafts.width, drafts.nodes)
        seconds = _beside_rows(drafts, prices, rows)
        order = _falling(_per_second(drafts, seconds + rows * prices.row(self._requests), held))
        self._level, self._request = np.divmod(order, self._requests)
        self._proposer = drafts.proposer[self._request]
        self._gained, self._rows, self._seconds = (each.take(order) for each in (drafts.gains, rows, seconds))

    def under(self, limits: Ints) -> Lengths:
        """See Slots."""
        inside = self._inside(limits)
        tokens = (inside * self._gained).cumsum(axis=1)
        tokens += self._requests
        rows = (inside * self._rows).cumsum(axis=1)
        seconds = (inside * self._seconds).cumsum(axis=1)
        seconds += self._search.passes(limits)
        seconds += self._prices.step.take(rows, mode="clip")
        fit = rows < len(self._prices.step)
        if self._search.bound is not None:
            fit &= seconds <= self._search.bound
        if self._held:
            fit[fit[:, self._held - 1], : self._held - 1] = False
        worth = tokens / seconds
        worth *= fit
        n, last = divmod(int(worth.argmax()), worth.shape[1])
        if not worth[n, last]:
            return self._nothing(limits[n])
        at, taken = (n, last), int(np.count_nonzero(inside[n, : last + 1]))
        least = float(self._gained[last])
        return Lengths(float(tokens[at]), float(seconds[at]), int(rows[at]), taken, least, limits[n])

    def levels(self, found: Lengths) -> Ints:
        """See Slots."""
        taken = np.flatnonzero(self._inside(found.limits[None])[0])[: found.taken]
        levels: Ints = np.bincount(self._request[taken], minlength=self._requests)
        return levels

    def _inside(self, limits: Ints) -> Bools:
        """[n, slots] whether limits [n, P] allow a slot."""
        allowed: Bools = self._level < limits[:, self._proposer]
        return allowed


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
