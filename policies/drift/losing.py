"""Whether speculation is losing: steps with drafts bring fewer tokens a second than those without.

round   of a number of running requests: `STEPS` steps with drafts against as many without, the latest of each. Which of
        the two was faster is a coin that falls on "without" at most every other time, as long as drafts are worth it
bets    on that coin, summed as those of `policies.drift.bets`: at A, in which A rounds on average see one false alarm
"""

from bisect import bisect_left
from collections import deque
from typing import Final

from policies.drift.base import Verdict

STEPS: Final = 8
"""Of each kind, that are compared: single steps vary too much."""

_UP_TO: Final = (1, 2, 4, 8, 16, 32, 64)
_MARGIN: Final = 0.03  # plain steps are called faster when they are so by more than this
_STAKE: Final = 0.6
_ROUNDS_PER_FALSE_ALARM: Final = 1e4
_ENOUGH_WINS: Final = 1e2  # of bets on the contrary, for it to be over


def place_of(running: int) -> int:
    """Which numbers of requests are counted together; there are few."""
    return bisect_left(_UP_TO, running)


def name_of(place: int) -> str:
    """Those numbers, in words."""
    if place == len(_UP_TO):
        return f"{_UP_TO[-1] + 1} and more"
    least = _UP_TO[place - 1] + 1 if place else 1
    return str(least) if least == _UP_TO[place] else f"{least} to {_UP_TO[place]}"


class Arms:
    """Steps with drafts and without, of some numbers of running requests."""

    def __init__(self, running: str) -> None:
        self.running = running
        self.losing = False
        self.rounds = 0
        """Seen since `losing` changed last."""
        self.drafting = float("nan")
        """Tokens a second in the last round."""
        self.plain = float("nan")
        self._evidence = 0.0
        self._steps: dict[bool, deque[tuple[int, float]]] = {
            drafts: deque(maxlen=STEPS) for drafts in (True, False)
        }

    @property
    def verdict(self) -> Verdict:
        """No evidence before the first round."""
        if self.losing:
            return Verdict.BREACHED
        return Verdict.FINE if self.rounds else Verdict.NO_EVIDENCE

    def add(self, tokens: int, seconds: float, *, drafts: bool) -> None:
        """Take in a step."""
        self._steps[drafts].append((tokens, seconds))
        if all(len(steps) == STEPS for steps in self._steps.values()):
            self._compare()

    def _compare(self) -> None:
        self.drafting, self.plain = (_rate(self._steps[drafts]) for drafts in (True, False))
        for steps in self._steps.values():
            steps.clear()
        self.rounds += 1
        lost = self.plain > self.drafting * (1 + _MARGIN)
        won_bet = lost is not self.losing
        self._evidence = (1 + self._evidence) * (1 + _STAKE if won_bet else 1 - _STAKE)
        if self._evidence >= (_ENOUGH_WINS if self.losing else _ROUNDS_PER_FALSE_ALARM):
            self.losing, self.rounds, self._evidence = not self.losing, 0, 0.0


class Losing:
    """All numbers of running requests, each on its own: what drafts cost depends on it."""

    def __init__(self) -> None:
        self._arms: dict[int, Arms] = {}

    def observe(self, running: int, tokens: int, seconds: float, *, drafts: bool) -> None:
        """A step in which so many requests decoded and nothing else was done; it took more than no time."""
        place = place_of(running)
        self._arms.setdefault(place, Arms(name_of(place))).add(tokens, seconds, drafts=drafts)

    def all(self) -> list[Arms]:
        """By rising number of requests."""
        return [self._arms[place] for place in sorted(self._arms)]

    def clear(self) -> None:
        """Another pair of models is served."""
        self._arms.clear()


def _rate(steps: deque[tuple[int, float]]) -> float:
    return sum(tokens for tokens, _ in steps) / sum(seconds for _, seconds in steps)
