"""How likely a drafted token is to be accepted, learned from examined tokens only.

evidence    a pair (accepted, examined) in which old tokens weigh less
own         the evidence of one request
class       requests with the same (traffic class, proposer); a request starts from what its class has shown,
            and a class from the configured prior
shrinkage   an estimate adds some imagined tokens at the rate of the level above, so that a request with
            little evidence stays near its class

What lies behind the first rejection was never examined, and a full accept shows nothing about the positions
after it: neither enters. `accepted / drafted` would count both as rejections, and so fall when k is raised.
"""

from dataclasses import dataclass
from typing import Final

from policies.base import Observation

ClassKey = tuple[str, str]
"""(traffic class, proposer)."""

OTHER_CLASSES: Final[ClassKey] = ("(other classes)", "(any)")
"""The entry that every class beyond the limit shares."""

MAX_CLASSES: Final = 256
"""Classes kept apart. Their names come from users, who must not be able to fill the memory with them."""

LOWEST: Final = 0.01
HIGHEST: Final = 0.99
"""Estimates stay between these: finite evidence never shows that all or nothing will be accepted."""

_SHRINKAGE: Final = 0.25  # in half-lives
_CLASS_SPAN: Final = 16.0  # half-life of a class in half-lives of a request: it pools many requests


@dataclass(frozen=True, slots=True)
class ClassAcceptance:
    """What a class has shown, for people."""

    traffic_class: str
    proposer: str
    acceptance: float
    examined: float  # tokens behind it, old ones at less than one


class Evidence:
    """An exponentially decayed pair; the half-life is counted in examined tokens.

    A round decays what came before it and then enters whole. Were the decay to run within the round, its last
    token, which is the rejected one, would weigh most, and the ratio would be biased downwards.
    """

    __slots__ = ("accepted", "examined")

    def __init__(self) -> None:
        self.accepted = 0.0
        self.examined = 0.0

    def add(self, accepted: int, examined: int, half_life: float) -> None:
        """Enter one round."""
        kept = 0.5 ** (examined / half_life)
        self.accepted = self.accepted * kept + accepted
        self.examined = self.examined * kept + examined

    def towards(self, centre: float, weight: float) -> float:
        """The rate, with `weight` imagined tokens at the rate `centre` added."""
        return _bounded((self.accepted + weight * centre) / (self.examined + weight))


class _Own(Evidence):
    """A request's evidence and the class it is shrunk towards."""

    __slots__ = ("key", "proposer")

    def __init__(self, key: ClassKey, proposer: str) -> None:
        super().__init__()
        self.key = key
        self.proposer = proposer


def _bounded(rate: float) -> float:
    return min(max(rate, LOWEST), HIGHEST)


class AcceptanceEstimates:
    """All estimates. Memory is bounded by the requests not yet forgotten and by `MAX_CLASSES`."""

    def __init__(self, half_life: float, prior: float) -> None:
        self._requests: dict[str, _Own] = {}
        self._classes: dict[ClassKey, Evidence] = {}
        self._rates: dict[ClassKey, float] = {}  # those computed since the class was last observed
        self._latest: dict[str, ClassKey] = {}  # by traffic class: with the proposer that drafted last
        self.configure(half_life, prior)

    def configure(self, half_life: float, prior: float) -> None:
        """Change how evidence is weighed, keeping the evidence."""
        self._half_life = half_life
        self._prior = prior
        self._shrinkage = _SHRINKAGE * half_life
        self._rates.clear()

    def observe(self, seen: Observation) -> None:
        """Learn from one round. A round in which nothing was examined says nothing."""
        assert 0 <= seen.examined - seen.accepted <= 1, seen
        assert seen.examined <= seen.drafted, seen
        if seen.examined == 0:
            return
        own = self._own(seen)
        own.add(seen.accepted, seen.examined, self._half_life)
        evidence = self._classes.setdefault(own.key, Evidence())
        evidence.add(seen.accepted, seen.examined, self._half_life * _CLASS_SPAN)
        self._rates.pop(own.key, None)

    def estimate(self, request: str, traffic_class: str) -> tuple[float, bool]:
        """The acceptance to expect of a request, and whether the request itself has shown anything yet."""
        own = self._requests.get(request)
        if own is None:
            return self._class_rate(self._latest.get(traffic_class, OTHER_CLASSES)), False
        return own.towards(self._class_rate(own.key), self._shrinkage), True

    def classes(self) -> list[ClassAcceptance]:
        """Every class that has shown something, in the order they appeared."""
        return [
            ClassAcceptance(*key, acceptance=self._class_rate(key), examined=evidence.examined)
            for key, evidence in self._classes.items()
        ]

    def forget(self, request: str) -> None:
        """Drop a request's own evidence; its class keeps what it learned."""
        self._requests.pop(request, None)

    def _own(self, seen: Observation) -> _Own:
        """The request's evidence about this proposer; what another one showed says nothing about it."""
        own = self._requests.get(seen.request)
        if own is None or own.proposer != seen.proposer:
            own = self._requests[seen.request] = _Own(self._key(seen), seen.proposer)
        return own

    def _key(self, seen: Observation) -> ClassKey:
        key = (seen.traffic_class, seen.proposer)
        if key not in self._classes and len(self._classes) >= MAX_CLASSES:
            return OTHER_CLASSES
        self._latest[seen.traffic_class] = key
        return key

    def _class_rate(self, key: ClassKey) -> float:
        rate = self._rates.get(key)
        if rate is None:
            evidence = self._classes.get(key)
            rate = evidence.towards(self._prior, self._shrinkage) if evidence else _bounded(self._prior)
            self._rates[key] = rate
        return rate
