"""A day in little: clients come and go while chats become copies; each policy gets the same requests.

All static policies are screened on a day of short answers. The best of those that draft, no drafts and the adaptive
policy then have one of long answers, since prompts cost all of them the same.
"""

import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.bar import Bar
from benchmarks.rivals import ADAPTIVE, PLAIN, STATIC, Rivals
from benchmarks.steady import Ask, asks, steps_weight, timed_step
from engine.core import Engine
from specd.bench.stages import ramp

CLIENTS: Final = (1, 2, 4, 8, 16, 32, 48, 32, 16, 8, 4, 2, 1)
_SHORTER: Final = 4
_FINALISTS: Final = 3  # that draft: with longer answers another of them may be the best
_REQUESTS: Final = {1: 2, 2: 4, 4: 8, 8: 16}  # so that a phase of few clients is about as long as one of many


@dataclass(frozen=True, slots=True)
class Phase:
    """So many clients, each with its next request when its last one has ended."""

    clients: int
    share: float  # of copies
    requests: list[Ask]


@dataclass(frozen=True, slots=True)
class Day:
    """Seconds of each phase by policy, round by round."""

    clients: list[int]
    screened: dict[str, float]
    """Seconds of the short day, of every static policy."""
    seconds: dict[str, list[list[float]]]

    def total(self, name: str) -> float:
        """Seconds of the whole day, the median of its rounds."""
        return statistics.median(sum(phases) for phases in self.seconds[name])

    def phases(self, name: str) -> list[float]:
        """Medians of the rounds."""
        return [statistics.median(each) for each in zip(*self.seconds[name], strict=True)]

    @property
    def best(self) -> str:
        """The static policy with the shortest day."""
        return min((name for name in self.seconds if name != ADAPTIVE), key=self.total)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        totals = {name: self.total(name) for name in self.seconds}
        return {
            "clients": self.clients,
            "screened": self.screened,
            "total_seconds": totals,
            "seconds": self.seconds,
        }


def phases(path: Path, clients: Sequence[int]) -> list[Phase]:
    """The day's requests."""
    day = ramp("chat", "copy", clients, lambda running: _REQUESTS.get(running, running))
    return [Phase(part.clients, part.share, asks(path, part.prompts)) for part in day]


def day(rivals: Rivals, of: Sequence[Phase], tokens: int, repeats: int, bar: Bar) -> Day:
    """tokens: of each answer, on the long days. The adaptive policy has a short one to learn by."""

    def measured(names: Sequence[str], part: str, tokens: int) -> dict[str, list[float]]:
        run = lambda: _run(rivals, names, of, tokens)  # noqa: E731
        found: dict[str, list[float]] = bar.measured(f"day, {part}", len(names) * weight(of, tokens), run)
        return found

    short = tokens // _SHORTER
    measured((ADAPTIVE,), "met", short)
    phases_of = measured(STATIC, "screened", short)
    screened = {name: sum(phases_of[name]) for name in STATIC}
    best = sorted(set(STATIC) - {PLAIN}, key=screened.__getitem__)[:_FINALISTS]
    names = (PLAIN, *best, ADAPTIVE)
    rounds = [measured(names, f"round {turn}", tokens) for turn in range(1, repeats + 1)]
    seconds = {name: [each[name] for each in rounds] for name in names}
    return Day([phase.clients for phase in of], screened, seconds)


def weight(of: Sequence[Phase], tokens: int) -> float:
    """Of one day, in rows of a prompt, about."""
    rounds = [(len(phase.requests) / phase.clients, phase) for phase in of]
    return sum(
        sum(len(ask.prompt) for ask in phase.requests) + n * steps_weight(tokens, phase.clients)
        for n, phase in rounds
    )


def total_weight(of: Sequence[Phase], tokens: int, repeats: int) -> float:
    """Of all days."""
    short = weight(of, tokens // _SHORTER)
    return (1 + len(STATIC)) * short + repeats * (2 + _FINALISTS) * weight(of, tokens)


def _run(rivals: Rivals, names: Sequence[str], of: Sequence[Phase], tokens: int) -> dict[str, list[float]]:
    seconds = {name: [0.0] * len(of) for name in names}
    works = {name: _day(rivals.engine, of, tokens) for name in names}
    for name, (phase, took) in rivals.in_turns(works):
        seconds[name][phase] += took
    return seconds


def _day(engine: Engine, of: Sequence[Phase], tokens: int) -> Iterator[tuple[int, float]]:
    """(phase, seconds) of each step until all requests are answered, prompts included."""
    for number, phase in enumerate(of):
        waiting = deque(ask.request(tokens) for ask in phase.requests)
        for _ in range(min(phase.clients, len(waiting))):
            engine.submit(waiting.popleft())
        while engine.has_work:
            took, report = timed_step(engine)
            for output in report.outputs:
                if output.finish and waiting:
                    engine.submit(waiting.popleft())
            yield number, took
