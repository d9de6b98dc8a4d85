"""How likely a drafted token is to be accepted, learned from examined tokens only.

arm         who drafts and how: (proposer, grade, width); what one arm shows says nothing of another
position    the acceptance of a draft's first, second and third level, and of the levels after these, each given that
            the level before was accepted: a head falls off from its own output, while a match that has held for one
            token mostly holds for more
own         the evidence of one request
class       all requests of a traffic class; a request starts from what its class has shown, and a class from the
            configured prior
shrinkage   an estimate adds some imagined tokens at the rate of the level above, so that a request with
            little evidence stays near its class
slot        a row of the table of estimates: a request's own for an arm, its class's, or the prior

What lies behind the first rejection was never examined, and a full accept shows nothing about the positions
after it: neither enters. `accepted / drafted` would count both as rejections, and so fall when k is raised.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.base import Observation
from policies.evidence import (
    HIGHEST,
    LOWEST,
    POSITIONS,
    PRIOR,
    Evidence,
    Floats,
    Ints,
    expected,
    rows_of,
    shown,
    summed,
)

__all__ = [
    "HIGHEST",
    "LOWEST",
    "POSITIONS",
    "AcceptanceEstimates",
    "Arm",
    "ClassAcceptance",
    "ClassKey",
    "Rates",
]

Arm = tuple[str, int, int]
"""(proposer, grade, width)."""

ClassKey = tuple[str, Arm]
"""(traffic class, arm)."""

OTHER_CLASSES: Final = "(other classes)"
"""The class in whose name all beyond the limit are kept."""

MAX_CLASSES: Final = 1024
"""Pairs of class and arm kept apart. Classes' names come from users, who must not be able to fill the memory."""

MAX_ARMS: Final = 16
"""Arms of a request that are remembered; the one that came first is forgotten first."""

_SHRINKAGE: Final = 0.25  # in half-lives
_CLASS_SPAN: Final = 16.0  # half-life of a class in half-lives of a request: it pools many requests

_OwnKey = tuple[str, str, int, int]  # request and arm, in one: looked up for every option in every step


@dataclass(frozen=True, slots=True)
class ClassAcceptance:
    """What a class has shown of an arm, for people."""

    traffic_class: str
    proposer: str
    grade: int
    width: int
    acceptance: float  # over all levels
    examined: float  # tokens behind it, old ones at less than one
    by_position: tuple[float, ...]  # the estimates


class Rates(NamedTuple):
    """What to expect of an arm, in percent: so coarse that what follows from it can be looked up."""

    first: int
    later: int
    own: bool  # whether the request itself has shown anything yet


class AcceptanceEstimates:
    """All estimates. Memory is bounded by the requests not yet forgotten, `MAX_ARMS` and `MAX_CLASSES`."""

    def __init__(self, half_life: float, prior: float) -> None:
        self._evidence = Evidence()
        self._own: dict[_OwnKey, int] = {}
        self._requests: dict[str, list[_OwnKey]] = {}
        self._classes: dict[ClassKey, int] = {}
        self.changes = 0
        """Grows whenever `slot` may say something else than before."""
        self.configure(half_life, prior)

    @property
    def table(self) -> Floats:
        """[slots, POSITIONS]: acceptance by position, given that the level before was accepted; that of the last column
        holds for all levels after it. To be read, and valid until the next `observe`, `configure` or `forget`.
        """
        return self._evidence.table

    def configure(self, half_life: float, prior: float) -> None:
        """Change how evidence is weighed, keeping the evidence."""
        self._half_life = half_life
        self._shrinkage = _SHRINKAGE * half_life
        self._evidence.assume(prior)
        self._estimate(rows_of(self._classes.values()))

    def observe(self, seen: Sequence[Observation]) -> None:
        """Learn from the rounds of a step. A round in which nothing was examined says nothing."""
        seen = [each for each in seen if each.examined]
        if not seen:
            return
        examined = np.array([each.examined for each in seen])
        accepted = np.array([each.accepted for each in seen])
        assert not ((examined - accepted) & -2).any(), seen  # 0 or 1
        values = shown(accepted, examined)
        if with_law := [place for place, each in enumerate(seen) if each.chances]:
            values[0][:, with_law] = expected([seen[place].chances for place in with_law])
        own, of_own = summed(self._rows(seen), values)
        classes, of_class = summed(self._evidence.parents(own), of_own)
        self._evidence.add(own, of_own, self._half_life)
        self._evidence.add_or_doubt(classes, of_class, self._half_life * _CLASS_SPAN, self._half_life)
        self._estimate(classes)

    def slot(self, request: str, traffic_class: str, arm: Arm) -> int:
        """Where the table says what to expect of an arm for a request."""
        own = self._own.get((request, *arm))
        return self._class_slot(traffic_class, arm) if own is None else own

    def own(self, slot: int) -> bool:
        """Whether the estimate rests on anything that a request has shown itself."""
        return self._evidence.parent(slot) != PRIOR

    def has_own(self, slots: NDArray[np.intp]) -> NDArray[np.bool_]:
        """The same for many."""
        owned: NDArray[np.bool_] = self._evidence.parents(slots) != PRIOR
        return owned

    def rates(self, request: str, traffic_class: str, arm: Arm) -> Rates:
        """What to expect of an arm for a request, in two numbers."""
        slot = self.slot(request, traffic_class, arm)
        first, later, *_ = self.table[slot].tolist()
        return Rates(round(100 * first), round(100 * later), self.own(slot))

    def classes(self) -> list[ClassAcceptance]:
        """Every class and arm that has shown something, in the order in which they appeared."""
        return [self._shown(key, slot) for key, slot in self._classes.items()]

    def forget(self, request: str) -> None:
        """Drop a request's own evidence; its class keeps what it learned."""
        keys = self._requests.pop(request, [])
        for key in keys:
            self._evidence.give_back(self._own.pop(key))
        self.changes += bool(keys)

    def _estimate(self, classes: Ints) -> None:
        """Of these classes and of all requests in them: what a request shares with its class moves with it."""
        self._evidence.estimate(classes, self._shrinkage)
        self._evidence.estimate(self._evidence.below(classes), self._shrinkage)

    def _class_slot(self, traffic_class: str, arm: Arm) -> int:
        slot = self._classes.get((traffic_class, arm))
        return self._classes.get((OTHER_CLASSES, arm), PRIOR) if slot is None else slot

    def _rows(self, seen: Sequence[Observation]) -> Ints:
        keys = [(each.request, each.proposer, each.grade, each.width) for each in seen]
        rows = list(map(self._own.get, keys))
        if None in rows:
            rows = [
                self._own.get(key) or self._new_row(key, each) for key, each in zip(keys, seen, strict=True)
            ]
        return np.array(rows)

    def _new_row(self, key: _OwnKey, seen: Observation) -> int:
        keys = self._requests.setdefault(seen.request, [])
        if len(keys) >= MAX_ARMS:
            self._evidence.give_back(self._own.pop(keys.pop(0)))
        keys.append(key)
        arm = seen.proposer, seen.grade, seen.width
        row = self._own[key] = self._evidence.take(self._class(seen.traffic_class, arm))
        self.changes += 1
        return row

    def _class(self, traffic_class: str, arm: Arm) -> int:
        key = (traffic_class, arm)
        if key not in self._classes and len(self._classes) >= MAX_CLASSES:
            key = (OTHER_CLASSES, arm)
        if key not in self._classes:
            self._classes[key] = self._evidence.take(PRIOR)
        return self._classes[key]

    def _shown(self, key: ClassKey, slot: int) -> ClassAcceptance:
        (traffic_class, arm), (accepted, examined) = key, self._evidence.totals(slot)
        rate = min(max(accepted / examined, LOWEST), HIGHEST)
        return ClassAcceptance(traffic_class, *arm, rate, examined, tuple(self.table[slot].tolist()))
