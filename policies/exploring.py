"""Drafts that are made for what they show: k = 0 yields no evidence and would otherwise never end, and what is never
chosen shows nothing either.

probe   a round of a request at k = 0 that drafts, `probe_every` of its rounds after its last draft at the earliest;
        who has waited longest comes first
look    a round of a request that drafts, left to another of its options
share   what both may cost: `SHARE` of the time, by what a step is reckoned to take
purse   probes and looks have one each, and half of the share; all of it while the other purse is full. Both are full at
        the start, so that what is new is tried soon. What a purse cannot pay for waits until it can

So every request at k = 0 is probed, in turn: within `probe_every` of its rounds if the purse allows, else as soon as
its half of the share pays for those before it, however dear they are and however many looks there are. It takes rows
that the drafts of others leave.
"""

from collections.abc import Sequence
from math import ceil, inf
from typing import Final, NamedTuple

import numpy as np

from policies.acceptance import MAX_CLASSES
from policies.columns import Columns
from policies.lengths import Bools, Ints, Prices
from policies.settings import PolicySettings
from policies.standing import Standing

SHARE: Final = 0.003
"""Of the time: what probes and looks may cost together."""

PURSE: Final = 2.0
"""Plain steps that each purse holds."""

_SOON: Final = 4  # steps between two looks of a class, whatever the purse holds
_NEVER: Final = -(1 << 40)


class Try(NamedTuple):
    """A draft for what it shows."""

    request: int  # its index in the batch
    place: int  # of the option
    k: int


class Batch(NamedTuple):
    """What may be tried in a step."""

    classes: Sequence[str]  # [b]
    rows: Ints  # [b] see policies.standing
    columns: Columns
    levels: Ints  # [O, b] what each option may have, caps of all kinds considered
    prices: Prices
    nodes: int  # of a tree, at most


class Left(NamedTuple):
    """What a step has left for tries."""

    rows: int
    cost: float = inf  # in plain steps, where it may not last for long


class _Purse:
    """In plain steps."""

    def __init__(self) -> None:
        self.holds = PURSE

    def take(self, more: float) -> float:
        """Take more in; returns what there is no room for."""
        total = self.holds + more
        self.holds = min(total, PURSE)
        return total - self.holds

    def affords(self, cost: float) -> bool:
        """Whether it holds so much, or is as full as can be."""
        return cost <= self.holds or self.holds >= PURSE

    def pay(self, cost: float) -> bool:
        """Pay so much, if it can. Returns whether it did."""
        affords = self.affords(cost)
        if affords:
            self.holds -= cost
        return affords


class Exploring:
    """Says what is to be tried, and pays for it."""

    def __init__(self, standing: Standing, settings: PolicySettings) -> None:
        self._standing = standing
        self._classes: dict[str, int] = {}
        self._tried = np.full((8, 8), _NEVER, dtype=np.intp)  # [classes, arms] step of the last draft
        self._looked = np.full(8, _NEVER, dtype=np.intp)  # [classes] step of the last look
        self._seen: Sequence[str] = ()
        self._seen_classes: Ints = np.zeros(0, dtype=np.intp)  # of the last batch
        self._for_probes, self._for_looks = _Purse(), _Purse()
        self._short = 0.0  # plain steps that a probe costs for which there was not enough in its purse
        self.configure(settings)

    def configure(self, settings: PolicySettings) -> None:
        """Change how often and how far; what is in the purses stays."""
        self._every, self._k = settings.probe_every, min(settings.probe_k, settings.k_max)

    def earn(self, seconds: float, plain: float) -> None:
        """A step takes so long, where a plain one takes `plain`."""
        half = SHARE / 2 * seconds / plain
        self._for_probes.take(self._for_looks.take(half + self._for_probes.take(half)))

    def tries(
        self, batch: Batch, chosen: Ints, k: Ints, left: Left, *, one: bool, gained: float, step: int
    ) -> list[Try]:
        """What to try in a step beside the drafts that were chosen. The rest is as below."""
        found, left = self._probes(batch, k == 0, left, one=one)
        look = self._look(batch, chosen, k, left, gained=gained, step=step)
        return found if look is None else [*found, look]

    def due_in(self, rows: Ints) -> int:
        """In how many steps somebody of these is to be probed, if none of them drafts before that."""
        steps = self._every - int(self._standing.idle[rows].max(initial=0))
        if self._for_probes.affords(self._short):
            return steps
        return max(steps, ceil((min(self._short, PURSE) - self._for_probes.holds) / SHARE))

    def may_pass(self, batch: Batch, idle: Ints) -> bool:
        """Whether nobody of the requests at these places is due for a probe that can be paid for. Then they wait for
        another step.
        """
        if len(idle):
            rows = batch.rows[idle]
            waited = self._standing.idle[rows] + 1
            due = waited >= self._every
            if due.any() and self._for_probes.affords(self._short) and (batch.levels[:, idle[due]] > 0).any():
                return False
            self._standing.idle[rows] = waited
        return True

    def _probes(self, batch: Batch, idle: Bools, left: Left, *, one: bool) -> tuple[list[Try], Left]:
        """Of requests that do not draft in this step [b], though they could; of one alone, if so asked. With what is
        left then.
        """
        found: list[Try] = []
        if not idle.any():
            return found, left
        waited = self._standing.idle
        waited[batch.rows] += idle
        waiting = idle & (one | (waited[batch.rows] >= self._every)) & (batch.levels > 0).any(axis=0)
        if not waiting.any() or not left.rows:
            return found, left
        due = np.flatnonzero(waiting)
        drafting: set[int] = set()
        self._short = 0.0
        for i in due[np.argsort(-waited[batch.rows[due]], kind="stable")].tolist():
            fits = np.flatnonzero((batch.levels[:, i] > 0) & (batch.columns.width[:, i] <= left.rows))
            if not len(fits):
                continue
            place = self._stalest(batch, i, fits)
            k = _fitting(batch, i, place, min(self._k, int(batch.levels[place, i])), left.rows)
            cost = _cost(batch, i, place, k, drafting)
            if cost > left.cost:
                waited[batch.rows[i]] = 0  # its turn is over, since another's may be short enough
                break
            if not self._for_probes.pay(cost):
                self._short = cost
                break
            drafting.add(int(batch.columns.proposer[place, i]))
            left = Left(left.rows - _rows(batch, i, place, k), left.cost - cost)
            found.append(Try(i, place, k))
            if one:
                break
        return found, left

    def _look(
        self, batch: Batch, chosen: Ints, k: Ints, left: Left, *, gained: float, step: int
    ) -> Try | None:
        """Of the request whose turn it is, if it drafts. chosen, k: [b] places and levels; left: beside them; gained:
        seconds that a token of its draft saves, about.
        """
        i = step % len(chosen)
        of_class = self._class(batch.classes[i])
        if len(batch.levels) < 2 or not k[i] or step - self._looked[of_class] < _SOON:
            return None
        if not self._for_looks.affords(gained / float(batch.prices.step[0])):
            return None
        others = batch.levels[:, i] > 0
        others[chosen[i]] = False
        if not others.any():
            return None
        place = self._stalest(batch, i, np.flatnonzero(others))
        own = int(chosen[i]), int(k[i])
        room = left.rows + _rows(batch, i, *own)
        levels = _fitting(batch, i, place, min(max(own[1], self._k), int(batch.levels[place, i])), room)
        if not levels:
            return None
        cost = _cost(batch, i, place, levels, set())
        instead = _cost(batch, i, *own, {int(batch.columns.proposer[own[0], i])})
        if cost - instead > left.cost or not self._for_looks.pay(cost + gained / float(batch.prices.step[0])):
            return None
        self._looked[of_class] = step
        return Try(i, place, levels)

    def drafted(self, batch: Batch, chosen: Ints, k: Ints, step: int) -> None:
        """Requests draft so many levels [b] in this step, by the options at these places [b]."""
        drafts = np.flatnonzero(k)
        self._standing.idle[batch.rows[drafts]] = 0
        arms = batch.columns.arm[chosen[drafts], drafts]
        self._room(int(arms.max(initial=0)))
        if batch.classes != self._seen:
            self._seen = batch.classes
            self._seen_classes = np.array([self._class(name) for name in batch.classes])
        self._tried[self._seen_classes[drafts], arms] = step

    def _stalest(self, batch: Batch, i: int, places: Ints) -> int:
        """Of these options of a request, the one that its class has tried least lately."""
        arms = batch.columns.arm[places, i]
        self._room(int(arms.max()))
        return int(places[self._tried[self._class(batch.classes[i]), arms].argmin()])

    def _class(self, name: str) -> int:
        known = self._classes.get(name)
        if known is None:
            if len(self._classes) >= MAX_CLASSES:
                return 0
            known = self._classes[name] = len(self._classes)
            if known >= len(self._tried):
                self._tried = np.concatenate([self._tried, np.full_like(self._tried, _NEVER)])
                self._looked = np.concatenate([self._looked, np.full_like(self._looked, _NEVER)])
        return known

    def _room(self, arm: int) -> None:
        while arm >= self._tried.shape[1]:
            self._tried = np.concatenate([self._tried, np.full_like(self._tried, _NEVER)], axis=1)


def _cost(batch: Batch, i: int, place: int, k: int, drafting: set[int]) -> float:
    """Of a draft, in plain steps, beside others by those who are `drafting` for a try already."""
    columns, prices = batch.columns, batch.prices
    p, rows = int(columns.proposer[place, i]), _rows(batch, i, place, k)
    seconds = rows * (prices.row(0) + prices.node[p]) + columns.owed[place, i] * prices.owed[p]
    if p not in drafting:
        seconds += prices.fixed[p] + k * prices.level[p]
    return float(seconds / prices.step[0])


def _rows(batch: Batch, i: int, place: int, k: int) -> int:
    """Of a draft of k levels by this option of a request."""
    width = int(batch.columns.width[place, i])
    return k if width == 1 else min(width * k, batch.nodes)


def _fitting(batch: Batch, i: int, place: int, k: int, room: int) -> int:
    """The most levels, up to k, that take no more rows than there are."""
    return k if _rows(batch, i, place, k) <= room else room // int(batch.columns.width[place, i])
