"""How likely a drafted token is to be accepted, learned from examined tokens only.

arm         who drafts and how: (proposer, grade, width); what one arm shows says nothing of another
first       the acceptance of a draft's first level
later       that of the levels after it, given that those before were accepted: a head falls off from its own output,
            while a match that has held for one token mostly holds for more
own         the evidence of one request
class       all requests of a traffic class; a request starts from what its class has shown, and a class from the
            configured prior
shrinkage   an estimate adds some imagined tokens at the rate of the level above, so that a request with
            little evidence stays near its class

What lies behind the first rejection was never examined, and a full accept shows nothing about the positions
after it: neither enters. `accepted / drafted` would count both as rejections, and so fall when k is raised.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Final, NamedTuple

from policies.base import Observation

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

LOWEST: Final = 0.01
HIGHEST: Final = 0.99
"""Estimates stay between these: finite evidence never shows that all or nothing will be accepted."""

_SHRINKAGE: Final = 0.25  # in half-lives
_CLASS_SPAN: Final = 16.0  # half-life of a class in half-lives of a request: it pools many requests
_CONTRADICTION: Final = 3.5  # standard deviations between a class's recent evidence and all of it
_KEPT: Final = (
    3.0  # examined tokens of the recent evidence that are left then: it is partly of before the change
)
_RECENT_ENOUGH: Final = 5.0  # examined tokens below which recent evidence contradicts nothing


@dataclass(frozen=True, slots=True)
class ClassAcceptance:
    """What a class has shown of an arm, for people."""

    traffic_class: str
    proposer: str
    grade: int
    width: int
    acceptance: float
    examined: float  # tokens behind it, old ones at less than one


class Rates(NamedTuple):
    """What to expect of an arm, in percent: so coarse that what follows from it can be looked up."""

    first: int
    later: int
    own: bool  # whether the request itself has shown anything yet


class Evidence:
    """An exponentially decayed pair; the half-life is counted in examined tokens.

    What comes in together decays what came before it and then enters whole. Were the decay to run within a round, its
    last token, which is the rejected one, would weigh most, and the ratio would be biased downwards.
    """

    __slots__ = ("accepted", "examined")

    def __init__(self, accepted: float = 0.0, examined: float = 0.0) -> None:
        self.accepted = accepted
        self.examined = examined

    def add(self, accepted: int, examined: int, half_life: float) -> None:
        """Enter what one round showed. Where it showed nothing, what was there fades as by one token."""
        kept = 0.5 ** (max(examined, 1) / half_life)
        self.accepted = self.accepted * kept + accepted
        self.examined = self.examined * kept + examined

    def towards(self, centre: float, weight: float) -> float:
        """The rate, with `weight` imagined tokens at the rate `centre` added."""
        return _bounded((self.accepted + weight * centre) / (self.examined + weight))


class _Rounds:
    """Evidence of rounds, the first level apart from the later ones.

    The later levels' fades even where no draft comes so far: else a few unlucky ones would keep drafts at one level,
    where there is nothing to learn of the others.
    """

    __slots__ = ("first", "later")

    def __init__(self, first: Evidence | None = None, later: Evidence | None = None) -> None:
        self.first = first or Evidence()
        self.later = later or Evidence()

    def add(self, accepted: int, examined: int, half_life: float) -> None:
        self.first.add(min(accepted, 1), 1, half_life)
        self.later.add(max(accepted - 1, 0), examined - 1, half_life)

    def faded(self, most: float) -> "_Rounds":
        """The same rates, with no more than so many tokens behind each."""
        return _Rounds(_faded(self.first, most), _faded(self.later, most))


class _OfClass:
    """What a class has shown of an arm. It remembers for long, until what is recent contradicts it: an arm that has
    become better or worse is another arm.
    """

    __slots__ = ("all", "rates", "recent")

    def __init__(self, rates: Rates) -> None:
        self.all = _Rounds()
        self.recent = _Rounds()
        self.rates = rates

    def add(self, seen: Observation, half_life: float) -> None:
        self.all.add(seen.accepted, seen.examined, half_life * _CLASS_SPAN)
        self.recent.add(seen.accepted, seen.examined, half_life)
        if _contradicts(self.recent.first, self.all.first):
            self.recent = self.recent.faded(_KEPT)
            self.all = self.recent.faded(_KEPT)

    def estimate(self, prior: float, weight: float) -> None:
        """Makes new rates only where they differ by more than the last digit: requests look whether they are new."""
        first = self.all.first.towards(prior, weight)
        rates = Rates(_percent(first), _percent(self.all.later.towards(first, weight)), own=False)
        if max(abs(rates.first - self.rates.first), abs(rates.later - self.rates.later)) > 1:
            self.rates = rates


class _Own(_Rounds):
    """What a request has shown of an arm."""

    __slots__ = ("centre", "rates")

    def __init__(self) -> None:
        super().__init__()
        self.centre: Rates | None = None  # its class's rates at the time of its own; None: there are none yet
        self.rates = _NOTHING

    def estimate(self, centre: Rates, weight: float) -> None:
        first = self.first.towards(centre.first / 100, weight)
        later = self.later.towards(centre.later / 100, weight)
        self.rates, self.centre = Rates(_percent(first), _percent(later), own=True), centre


_NOTHING: Final = Rates(0, 0, own=False)
_NO_ARMS: Final[dict[Arm, _Own]] = {}


def _bounded(rate: float) -> float:
    return min(max(rate, LOWEST), HIGHEST)


def _percent(rate: float) -> int:
    return round(rate * 100)


def _faded(evidence: Evidence, most: float) -> Evidence:
    scale = most / max(evidence.examined, most)
    return Evidence(evidence.accepted * scale, evidence.examined * scale)


def _contradicts(recent: Evidence, everything: Evidence) -> bool:
    if recent.examined < _RECENT_ENOUGH:
        return False
    rate = (everything.accepted + 1) / (everything.examined + 2)
    noise = sqrt(rate * (1 - rate) / recent.examined)
    return abs(recent.accepted / recent.examined - rate) > _CONTRADICTION * noise


class AcceptanceEstimates:
    """All estimates. Memory is bounded by the requests not yet forgotten, `MAX_ARMS` and `MAX_CLASSES`."""

    def __init__(self, half_life: float, prior: float) -> None:
        self._requests: dict[str, dict[Arm, _Own]] = {}
        self._classes: dict[ClassKey, _OfClass] = {}
        self.configure(half_life, prior)

    def configure(self, half_life: float, prior: float) -> None:
        """Change how evidence is weighed, keeping the evidence."""
        self._half_life = half_life
        self._prior = prior
        self._shrinkage = _SHRINKAGE * half_life
        percent = _percent(_bounded(prior))
        self._unseen = Rates(percent, percent, own=False)
        for of_class in self._classes.values():
            of_class.estimate(prior, self._shrinkage)
        for arms in self._requests.values():
            for own in arms.values():
                own.centre = None

    def observe(self, seen: Observation) -> None:
        """Learn from one round. A round in which nothing was examined says nothing."""
        assert 0 <= seen.examined - seen.accepted <= 1, seen
        assert seen.examined <= seen.drafted, seen
        if seen.examined == 0:
            return
        arm = (seen.proposer, seen.grade, seen.width)
        own = self._own(seen.request, arm)
        own.add(seen.accepted, seen.examined, self._half_life)
        own.centre = None
        of_class = self._class(seen.traffic_class, arm)
        of_class.add(seen, self._half_life)
        of_class.estimate(self._prior, self._shrinkage)

    def rates(self, request: str, traffic_class: str, arm: Arm) -> Rates:
        """What to expect of an arm for a request."""
        of_class = self._classes.get((traffic_class, arm)) or self._classes.get((OTHER_CLASSES, arm))
        centre = self._unseen if of_class is None else of_class.rates
        own = self._requests.get(request, _NO_ARMS).get(arm)
        if own is None:
            return centre
        if own.centre is not centre:
            own.estimate(centre, self._shrinkage)
        return own.rates

    def classes(self) -> list[ClassAcceptance]:
        """Every class and arm that has shown something, in the order in which they appeared."""
        return [_shown(key, of_class) for key, of_class in self._classes.items()]

    def forget(self, request: str) -> None:
        """Drop a request's own evidence; its class keeps what it learned."""
        self._requests.pop(request, None)

    def _own(self, request: str, arm: Arm) -> _Own:
        arms = self._requests.setdefault(request, {})
        own = arms.get(arm)
        if own is None:
            if len(arms) >= MAX_ARMS:
                del arms[next(iter(arms))]
            own = arms[arm] = _Own()
        return own

    def _class(self, traffic_class: str, arm: Arm) -> _OfClass:
        key = (traffic_class, arm)
        if key not in self._classes and len(self._classes) >= MAX_CLASSES:
            key = (OTHER_CLASSES, arm)
        return self._classes.setdefault(key, _OfClass(self._unseen))


def _shown(key: ClassKey, of_class: _OfClass) -> ClassAcceptance:
    """Over all levels: accepted of examined."""
    (traffic_class, arm), first, later = key, of_class.all.first, of_class.all.later
    examined = first.examined + later.examined
    rate = _bounded((first.accepted + later.accepted) / examined)
    return ClassAcceptance(traffic_class, *arm, acceptance=rate, examined=examined)
