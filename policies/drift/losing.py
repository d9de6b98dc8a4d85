"""Whether speculation is losing: steps with drafts bring fewer tokens a second than those without.

round   of a number of running requests: `STEPS` steps with drafts against as many without, the latest of each. Which of
        the two was faster is a coin that falls on "without" at most every other time, as long as drafts are worth it
bets    on that coin, summed as those of `policies.drift.bets`: at A, in which A rounds on average see one false alarm
rest    of a number of running requests: `RESTED` steps in a row without drafts. Whoever drafts so seldom does not lose
        by it: what was lost is over, and what little is tried between two rests is not summed up
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from policies.drift.base import Verdict

STEPS: Final = 8
"""Of each kind, that are compared: single steps vary too much."""

RESTED: Final = 64
"""Steps."""

_UP_TO: Final = (1, 2, 4, 8, 16, 32, 64)
_MARGIN: Final = 0.03  # plain steps are called faster when they are so by more than this
_STAKE: Final = 0.6
_ROUNDS_PER_FALSE_ALARM: Final = 1e4
_ENOUGH_WINS: Final = 1e2  # of bets on the contrary, for it to be over
_SAVED: Final = ("losing", "rounds", "drafting", "plain", "seen_at", "_evidence", "_without")


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
        self.seen_at = float("-inf")
        """Unix seconds of the last step."""
        self._evidence = 0.0
        self._without = 0
        """Steps in a row without drafts."""
        self._steps: dict[bool, deque[tuple[int, float]]] = {
            drafts: deque(maxlen=STEPS) for drafts in (True, False)
        }

    def verdict(self, now: float, stale_seconds: float) -> Verdict:
        """No evidence before the first round, and where no step was seen for so long."""
        if now - self.seen_at >= stale_seconds:
            return Verdict.NO_EVIDENCE
        if self.losing:
            return Verdict.BREACHED
        return Verdict.FINE if self.rounds or self._without >= RESTED else Verdict.NO_EVIDENCE

    def add(self, tokens: int, seconds: float, *, drafts: bool, t: float) -> bool:
        """Take in a step; whether it ended a round, or began a rest."""
        self.seen_at = t
        self._without = 0 if drafts else self._without + 1
        self._steps[drafts].append((tokens, seconds))
        if self._without == RESTED:
            self._become(losing=False)
            self._steps[True].clear()
        elif all(len(steps) == STEPS for steps in self._steps.values()):
            self._compare()
        else:
            return False
        return True

    def saved(self) -> dict[str, Any]:
        """What is known, but for the steps of the round that has not ended."""
        return {name: getattr(self, name) for name in _SAVED}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `saved` gave. Raises `KeyError` where it is something else."""
        for name in _SAVED:
            setattr(self, name, saved[name])

    def _compare(self) -> None:
        self.drafting, self.plain = (_rate(self._steps[drafts]) for drafts in (True, False))
        for steps in self._steps.values():
            steps.clear()
        self.rounds += 1
        lost = self.plain > self.drafting * (1 + _MARGIN)
        won_bet = lost is not self.losing
        self._evidence = (1 + self._evidence) * (1 + _STAKE if won_bet else 1 - _STAKE)
        if self._evidence >= (_ENOUGH_WINS if self.losing else _ROUNDS_PER_FALSE_ALARM):
            self._become(losing=not self.losing)

    def _become(self, *, losing: bool) -> None:
        self.losing, self.rounds, self._evidence = losing, 0, 0.0


class Losing:
    """All numbers of running requests, each on its own: what drafts cost depends on it."""

    def __init__(self) -> None:
        self._arms: dict[int, Arms] = {}
        self._pair = ("", "")
        self.news = 0
        """Counts what is worth being saved."""

    @property
    def breaches(self) -> int:
        """How many lose."""
        return sum(arms.losing for arms in self._arms.values())

    def serve(self, target_revision: str, draft_revision: str) -> None:
        """This pair is served from now on; what is known is of the one that was."""
        pair = (target_revision, draft_revision)
        if pair != self._pair:
            self._pair = pair
            self.clear()

    def observe(self, running: int, tokens: int, seconds: float, *, drafts: bool, t: float) -> None:
        """A step in which so many requests decoded and nothing else was done; it took more than no time. t: Unix
        seconds.
        """
        place = place_of(running)
        arms = self._arms.setdefault(place, Arms(name_of(place)))
        self.news += arms.add(tokens, seconds, drafts=drafts, t=t)

    def all(self) -> list[Arms]:
        """By rising number of requests."""
        return [self._arms[place] for place in sorted(self._arms)]

    def clear(self) -> None:
        """What is known is of no use any more."""
        self._arms.clear()
        self.news += 1

    def saved(self) -> dict[str, Any]:
        """All that is known, of plain values."""
        return {
            "pair": list(self._pair),
            "arms": [[place, arms.saved()] for place, arms in self._arms.items()],
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `saved` gave. Raises `ValueError` where it is something else."""
        try:
            target, draft = saved["pair"]
            found = {place: Arms(name_of(place)) for place, _ in saved["arms"]}
            for place, values in saved["arms"]:
                found[place].restore(values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"it is no state of what speculation loses: {error!r}") from error
        self._pair, self._arms = (target, draft), found


def _rate(steps: deque[tuple[int, float]]) -> float:
    return sum(tokens for tokens, _ in steps) / sum(seconds for _, seconds in steps)
