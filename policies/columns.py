"""The options of a running batch, as columns: what is one object each for people is one array here.

arm     who drafts and how: (proposer, grade, width); numbered in the order in which they appear
place   of an option among those of its request: the first index of all [O, b] arrays, the second being the request's

Requests and options are mostly those of the step before: what follows from them is then kept.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from policies.acceptance import AcceptanceEstimates, Arm
from policies.base import Option
from policies.evidence import PRIOR
from policies.lengths import Bools, Floats, Ints

Options = tuple[tuple[Option, ...], ...]
"""By request."""

NO_ARM: Final = -1
_NO_OPTION: Final = np.array([0, NO_ARM, 0, 1, 0, PRIOR])[
    :, None, None
]  # k, arm, proposer, width, owed, slot


class Columns(NamedTuple):
    """What is offered to `b` requests, `O` options at most. Where there is no option, its k is 0 and its arm NO_ARM."""

    k: Ints  # [O, b] levels, at most
    arm: Ints  # [O, b]
    proposer: Ints  # [O, b]
    width: Ints  # [O, b]
    owed: Floats  # [O, b]
    slot: Ints  # [O, b] of the table of estimates
    own: Bools  # [O, b] whether the request itself has shown anything of the arm
    trees: bool  # whether any option is wider than a chain


class Reader:
    """Makes columns, and numbers arms and proposers."""

    def __init__(self, estimates: AcceptanceEstimates) -> None:
        self._estimates = estimates
        self._arms: dict[Arm, int] = {}
        self._proposers: dict[str, int] = {}
        self._read: tuple[object, ...] = ()
        self._columns: Columns | None = None

    @property
    def proposers(self) -> tuple[str, ...]:
        """By number."""
        return tuple(self._proposers)

    def are_all(self, columns: Columns) -> bool:
        """Whether every request is offered every arm that there is."""
        return len(columns.arm) == len(self._arms) and bool((columns.arm != NO_ARM).all())

    def columns(self, names: Sequence[str], classes: Sequence[str], options: Options) -> Columns:
        """Of these requests, their traffic classes and what is offered to them."""
        read = names, classes, options, self._estimates.changes
        if self._columns is None or read != self._read:
            self._columns, self._read = self._made(names, classes, options), read
        return self._columns

    def _made(self, names: Sequence[str], classes: Sequence[str], options: Options) -> Columns:
        counts = np.fromiter(map(len, options), np.intp, len(options))
        flat = list(chain.from_iterable(options))
        most = int(counts.max(initial=0))
        if not flat:
            return _nothing(len(options))
        proposers, ks, grades, widths, owed = zip(*flat, strict=True)
        request = np.repeat(np.arange(len(options)), counts)
        place = np.arange(len(flat)) - np.repeat(np.cumsum(counts) - counts, counts)
        arms = list(zip(proposers, grades, widths, strict=True))
        at = place, request
        shape = most, len(options)
        slots = map(
            self._estimates.slot,
            map(names.__getitem__, request.tolist()),
            map(classes.__getitem__, request.tolist()),
            arms,
        )
        values = np.array(
            (ks, [*map(self._arm, arms)], [*map(self._proposer, proposers)], widths, owed, [*slots])
        )
        k, arm, proposer, width, debt, slot = _placed(shape, at, values)
        own = self._estimates.has_own(slot)
        return Columns(k, arm, proposer, width, debt.astype(np.float64), slot, own, max(widths) > 1)

    def _arm(self, arm: Arm) -> int:
        return self._arms.setdefault(arm, len(self._arms))

    def _proposer(self, name: str) -> int:
        return self._proposers.setdefault(name, len(self._proposers))


def _nothing(requests: int) -> Columns:
    k, arm, proposer, width, owed, slot = np.broadcast_to(_NO_OPTION, (len(_NO_OPTION), 1, requests))
    own = np.zeros(k.shape, np.bool_)
    return Columns(k, arm, proposer, width, owed.astype(np.float64), slot, own, trees=False)


def _placed(shape: tuple[int, int], at: tuple[Ints, Ints], values: Ints) -> Ints:
    """[6, O, b] of the columns' values, one for each option: [6, options]."""
    if values.shape[1] == shape[0] * shape[1]:
        return np.ascontiguousarray(values.reshape(len(values), *shape[::-1]).transpose(0, 2, 1))
    found = np.empty((len(values), *shape), dtype=np.intp)
    found[:] = _NO_OPTION
    found[:, *at] = values
    return found


def gains(table: Floats, columns: Columns, levels: Ints, most: int) -> Floats:
    """[most, O, b] tokens that each level of an option adds; none beyond its `levels` [O, b]."""
    rates, last = table.take(columns.slot, axis=0), table.shape[1] - 1
    found = np.empty((most, *levels.shape))
    found[0] = rates[..., 0]
    for level in range(1, most):
        np.multiply(found[level - 1], rates[..., min(level, last)], out=found[level])
    if int(levels.min()) < most:
        beyond: Bools = np.arange(most)[:, None, None] >= levels
        found[beyond] = 0.0
    return found
