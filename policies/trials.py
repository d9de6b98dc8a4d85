"""When each option was last tried, by class: what is never chosen shows nothing, and may have become better.

round   of a class: one in which one of its requests drafted
look    a round left to an option that was not chosen
new     an arm that its class has tried only a few times; it is tried soon, so that a class begins with an idea of each
due     neither was the arm tried for so many rounds of its class, nor has the class had a look for as long: however
        many options there are, at most one round in so many is a look
"""

from collections.abc import Iterable
from typing import Final

from policies.acceptance import MAX_CLASSES, Arm, ClassKey
from policies.base import Option

FEW: Final = 6
"""Trials after which an arm is no longer new."""

SOON: Final = 4
"""Rounds between looks at something new."""


class _Class:
    __slots__ = ("looked", "rounds")

    def __init__(self) -> None:
        self.rounds = 0
        self.looked = 0  # round of the last look


class _Trial:
    __slots__ = ("at", "times")

    def __init__(self) -> None:
        self.times = 0
        self.at = 0  # round of its class in which it was tried last


_UNTRIED: Final = _Trial()
_UNKNOWN: Final = _Class()


class Trials:
    """Counts by class and arm. Where they become too many, those that came first are forgotten."""

    def __init__(self) -> None:
        self._classes: dict[str, _Class] = {}
        self._trials: dict[ClassKey, _Trial] = {}

    def drafted(self, traffic_class: str, option: Option) -> None:
        """A request of this class was left to this option."""
        of_class = self._classes.get(traffic_class)
        if of_class is None:
            _make_room(self._classes)
            of_class = self._classes[traffic_class] = _Class()
        of_class.rounds += 1
        trial = self._trials.get(key := (traffic_class, arm_of(option)))
        if trial is None:
            _make_room(self._trials)
            trial = self._trials[key] = _Trial()
        trial.times += 1
        trial.at = of_class.rounds

    def stalest(self, traffic_class: str, options: Iterable[Option]) -> Option | None:
        """The one that was tried least lately; of those that never were, the first."""
        return min(options, key=lambda option: self._trial(traffic_class, option).at, default=None)

    def due(self, traffic_class: str, options: Iterable[Option], every: int) -> Option | None:
        """The stalest of those of these that are due, where what is not new is due every so many rounds."""
        of_class = self._classes.get(traffic_class, _UNKNOWN)
        waited = of_class.rounds - of_class.looked
        if waited < min(SOON, every):
            return None
        return self.stalest(
            traffic_class,
            (
                option
                for option in options
                if self._due(self._trial(traffic_class, option), of_class.rounds, waited, every)
            ),
        )

    def looked(self, traffic_class: str) -> None:
        """What was due is tried now."""
        if of_class := self._classes.get(traffic_class):
            of_class.looked = of_class.rounds

    def _trial(self, traffic_class: str, option: Option) -> _Trial:
        return self._trials.get((traffic_class, arm_of(option)), _UNTRIED)

    @staticmethod
    def _due(trial: _Trial, now: int, waited: int, every: int) -> bool:
        gap = min(SOON, every) if trial.times < FEW else every
        return waited >= gap and now - trial.at >= gap


def arm_of(option: Option) -> Arm:
    """What its acceptance is learned under."""
    return option.proposer, option.grade, option.width


def _make_room(counts: dict[str, _Class] | dict[ClassKey, _Trial]) -> None:
    if len(counts) >= MAX_CLASSES:
        del counts[next(iter(counts))]  # type: ignore[arg-type]
