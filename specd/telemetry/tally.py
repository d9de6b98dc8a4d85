"""Plain counts kept between scrapes.

Prometheus' own metric objects take a lock and search their buckets at each touch; a step touches them a few
hundred times. Here a step costs a handful of list increments, and a scrape does the summing.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from engine.api import Output, Round

MAX_POSITIONS = 16
"""The config and the API limit k to it; of a longer round the rest would go uncounted by position."""

STEP_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Seconds of a step's phase."""


class Histogram:
    """Observations by bucket; `bounds` are the inclusive upper ones, ascending, without +Inf."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """`count` observations of the same value."""
        self._counts[bisect_left(self._bounds, value)] += count
        self.sum += value * count

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus takes them: (upper bound, observations up to it)."""
        labels = [str(bound) for bound in self._bounds] + ["+Inf"]
        return list(zip(labels, accumulate(self._counts), strict=True))


class ProposerTally:
    """What one proposer's drafts came to."""

    def __init__(self) -> None:
        self.drafts = 0
        self.drafted = 0
        self.accepted = 0
        self._examined_lengths = [0] * (MAX_POSITIONS + 1)
        self._accepted_lengths = [0] * (MAX_POSITIONS + 1)

    def add(self, drafted: int, examined: int, accepted: int, times: int) -> None:
        """Count `times` equal rounds that drafted something."""
        self.drafts += times
        self.drafted += drafted * times
        self.accepted += accepted * times
        self._examined_lengths[min(examined, MAX_POSITIONS)] += times
        self._accepted_lengths[min(accepted, MAX_POSITIONS)] += times

    def examined_by_position(self) -> list[int]:
        """Rounds in which each position, the first one first, was examined."""
        return _reached(self._examined_lengths)

    def accepted_by_position(self) -> list[int]:
        """Rounds in which each position, the first one first, was accepted."""
        return _reached(self._accepted_lengths)


def _reached(lengths: Sequence[int]) -> list[int]:
    """From rounds by length to rounds that reached position 1, 2, …"""
    return list(accumulate(reversed(lengths[1:])))[::-1]


class Acceptance:
    """Accepted over examined, with old evidence fading by the evidence that follows it, never by time.

    So a class in which nothing is drafted keeps its last estimate.
    """

    HALF_LIFE = 512.0
    """Examined tokens after which a token weighs half."""

    def __init__(self) -> None:
        self._examined = 0.0
        self._accepted = 0.0

    def add(self, examined: int, accepted: int) -> None:
        """Take one step's evidence of the class together."""
        if examined:
            fade = 0.5 ** (examined / self.HALF_LIFE)
            self._examined = self._examined * fade + examined
            self._accepted = self._accepted * fade + accepted

    @property
    def value(self) -> float:
        """NaN while nothing has been examined."""
        return self._accepted / self._examined if self._examined else float("nan")


class PooledAcceptance:
    """A class's acceptance over all who draft for it.

    Each proposer's own is kept apart and weighs by its rounds, old ones fading. So the number moves when a draft
    becomes better or worse, or when others draft, which is why no alarm goes by it.
    """

    HALF_LIFE = 512.0
    """Rounds of the class after which a round weighs half."""

    def __init__(self) -> None:
        self._of: dict[str, Acceptance] = {}
        self._rounds: dict[str, float] = {}

    def add(self, proposer: str, rounds: int, examined: int, accepted: int) -> None:
        """Take one step's evidence of the class and this proposer together."""
        fade = 0.5 ** (rounds / self.HALF_LIFE)
        self._rounds = {name: weight * fade for name, weight in self._rounds.items()}
        self._rounds[proposer] = self._rounds.get(proposer, 0.0) + rounds
        self._of.setdefault(proposer, Acceptance()).add(examined, accepted)

    def by_proposer(self) -> dict[str, float]:
        """Each one's own."""
        return {name: acceptance.value for name, acceptance in self._of.items()}

    @property
    def value(self) -> float:
        """NaN while nothing has been examined."""
        total = sum(self._rounds.values())
        if not total:
            return float("nan")
        return sum(self._of[name].value * weight for name, weight in self._rounds.items()) / total


class Evidence(NamedTuple):
    """What drafts came to."""

    rounds: int
    examined: int
    accepted: int


_NOTHING: Final = Evidence(0, 0, 0)


def evidence_of(rounds: Iterable[Round]) -> dict[tuple[str, str], Evidence]:
    """Of one step, by class and proposer."""
    found: dict[tuple[str, str], Evidence] = {}
    for one in rounds:
        if one.is_evidence:
            of = one.traffic_class, one.proposer
            seen = found.get(of, _NOTHING)
            found[of] = Evidence(seen.rounds + 1, seen.examined + one.examined, seen.accepted + one.accepted)
    return found


class Rate:
    """Amount per second over the last `WINDOW` seconds. Quiet time counts: an idle engine tends to 0."""

    WINDOW = 10.0
    _SLOT = 0.25

    def __init__(self) -> None:
        self._slots: deque[list[float]] = deque()  # [start, amount], start ascending

    def add(self, amount: float, now: float) -> None:
        """`now` never goes back."""
        if self._slots and now - self._slots[-1][0] < self._SLOT:
            self._slots[-1][1] += amount
            return
        self._forget(now)
        self._slots.append([now, amount])

    def value(self, now: float) -> float:
        """The rate at `now`."""
        self._forget(now)
        return sum(amount for _, amount in self._slots) / self.WINDOW

    def _forget(self, now: float) -> None:
        while self._slots and self._slots[0][0] <= now - self.WINDOW:
            self._slots.popleft()


class TokenTimes:
    """Time to first token and between tokens, for requests that were announced by `started`."""

    SILENT = 3600.0

    def __init__(self) -> None:
        self.first = Histogram((0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0))
        self.between = Histogram((0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5))
        self._waiting: dict[str, float] = {}  # request -> when it started
        self._flowing: dict[tuple[str, int], float] = {}  # (request, which text) -> when its last token came

    def started(self, request: str, now: float) -> None:
        """The request, which waits since `now` for its first token, was handed to the engine."""
        self._waiting[request] = now

    def forget_all(self) -> None:
        """The engine has gone, and with it every request that was in it."""
        self._waiting.clear()
        self._flowing.clear()

    def forget_silent(self, now: float) -> None:
        """Whoever was in an engine when that was ended says no more: let go of those who have not for an hour."""
        self._waiting = {request: at for request, at in self._waiting.items() if now - at < self.SILENT}
        self._flowing = {text: at for text, at in self._flowing.items() if now - at < self.SILENT}

    def observe(self, outputs: Iterable[Output], now: float) -> None:
        """A round that commits n tokens counts as n equal pauses: sum and count stay those of tokens."""
        for output in outputs:
            if output.tokens:
                self._tokens(output, now)
            if output.finish is not None:
                self._waiting.pop(output.id, None)
                self._flowing.pop((output.id, output.index), None)

    def _tokens(self, output: Output, now: float) -> None:
        """A request has one time to first token, however many texts it asks for."""
        text, count = (output.id, output.index), len(output.tokens)
        last = self._flowing.get(text)
        if last is not None:
            self.between.add((now - last) / count, count)
        elif (started := self._waiting.pop(output.id, None)) is not None:
            self.first.add(now - started)
        elif not output.index:
            return
        self._flowing[text] = now
