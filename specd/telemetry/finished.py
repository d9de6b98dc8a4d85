"""Requests as they end, with what their rounds showed."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

from engine.api import Foreign, Idle, Output, Ready, Request, Round, StepReport
from policies.drift import Shown
from specd.restarts import Death
from specd.telemetry.tally import MAX_POSITIONS


@dataclass(slots=True)
class Drafts:
    """What one proposer's drafts for a request came to."""

    examined_lengths: list[int] = field(default_factory=lambda: [0] * (MAX_POSITIONS + 1))
    accepted_lengths: list[int] = field(default_factory=lambda: [0] * (MAX_POSITIONS + 1))
    chances: list[float] | None = field(default_factory=lambda: [0.0] * MAX_POSITIONS)
    """By position; None once a round's were not known."""

    def add(self, one: Round) -> None:
        """Count a round that is evidence."""
        self.examined_lengths[min(one.examined, MAX_POSITIONS)] += 1
        self.accepted_lengths[min(one.accepted, MAX_POSITIONS)] += 1
        if self.chances is None or len(one.chances) != one.examined:
            self.chances = None
            return
        for position, chance in enumerate(one.chances[:MAX_POSITIONS]):
            self.chances[position] += chance

    @property
    def examined(self) -> tuple[int, ...]:
        """By position, up to the last that was reached."""
        return _reached(self.examined_lengths)

    @property
    def accepted(self) -> tuple[int, ...]:
        """As long as `examined`."""
        return _reached(self.accepted_lengths, len(self.examined))

    @property
    def expected(self) -> tuple[float, ...]:
        """As long as `examined`, or empty where it is not known."""
        return () if self.chances is None else tuple(self.chances[: len(self.examined)])


@dataclass(slots=True)
class Finished:
    """A request that has ended, all its texts together."""

    request: str
    traffic_class: str
    tenant: str
    temperature: float
    target_revision: str
    draft_revision: str
    left: int
    """Texts that have not ended yet."""
    t: float = 0.0
    """Unix seconds at its end."""
    tokens: int = 0
    drafts: dict[str, Drafts] = field(default_factory=dict)
    """By proposer; a grammar's forced tokens are nobody's drafts."""

    @property
    def pair(self) -> tuple[str, str]:
        """Of target and draft."""
        return self.target_revision, self.draft_revision

    def shown(self) -> Iterator[Shown]:
        """For the detectors: what each proposer showed."""
        for proposer, drafts in self.drafts.items():
            yield Shown(
                t=self.t,
                traffic_class=self.traffic_class,
                temperature=self.temperature,
                target_revision=self.target_revision,
                draft_revision=self.draft_revision,
                proposer=proposer,
                examined=drafts.examined,
                accepted=drafts.accepted,
                tokens=self.tokens,
                expected=drafts.expected,
            )


class Sink(Protocol):
    """Who is told of finished requests; quick, and never raises."""

    def finished(self, request: Finished) -> None:
        """It has ended."""


class Requests:
    """Follows requests through the steps of the engine that serves."""

    def __init__(self, *sinks: Sink, clock: Callable[[], float] = time.time) -> None:
        self._sinks = sinks
        self._clock = clock
        self._open: dict[str, Finished] = {}
        self._foreign: dict[str, dict[str, Drafts]] | None = None  # of requests that come past the daemon
        self.pair = ("", "")
        """Of target and draft, for what is submitted now."""
        self.pair_before = ("", "")

    def set_identity(self, target_revision: str, draft_revision: str) -> None:
        """This pair serves what is submitted from now on. The engine of the last but one has gone, with all in it."""
        if self.pair != (target_revision, draft_revision):
            self.pair, self.pair_before = (target_revision, draft_revision), self.pair
            self._open = {
                name: one for name, one in self._open.items() if one.pair in {self.pair, self.pair_before}
            }

    def ready(self, ready: Ready) -> None:
        """A new engine runs nothing that is known here."""
        self._foreign = {} if ready.foreign else None

    def submitted(self, request: Request, _admitted: float) -> None:
        """It was handed to the engine."""
        self.begin(request, self.pair)

    def begin(self, request: Request, pair: tuple[str, str]) -> None:
        """From here on, its rounds count for this pair."""
        self._open[request.id] = Finished(
            request.id, request.traffic_class, request.tenant, request.sampling.temperature, *pair, request.n
        )

    def step(self, report: StepReport) -> None:
        """Count its rounds, then see who has ended."""
        for one in report.rounds:
            drafts = self._drafts(one.request.partition("#")[0]) if one.is_evidence else None
            if drafts is not None:
                drafts.setdefault(one.proposer, Drafts()).add(one)
        for output in report.outputs:
            if output.foreign is not None:
                self._begin_foreign(output, output.foreign)
            if (request := self._open.get(output.id)) is None:
                continue
            request.tokens += len(output.tokens)
            request.left -= output.finish is not None
            if request.left == 0:
                self._end(request)

    def idle(self, _: Idle) -> None:
        """Nothing runs."""

    def died(self, _: Death) -> None:
        """The requests in it are lost."""
        self.lose(self.pair)

    def lose(self, pair: tuple[str, str]) -> None:
        """Forget the requests that this pair was to serve."""
        self._open = {name: request for name, request in self._open.items() if request.pair != pair}

    def _drafts(self, request: str) -> dict[str, Drafts] | None:
        """Where its rounds are counted; None where nobody wants to know."""
        if (known := self._open.get(request)) is not None:
            return known.drafts
        return None if self._foreign is None else self._foreign.setdefault(request, {})

    def _begin_foreign(self, output: Output, told: Foreign) -> None:
        drafts = {} if self._foreign is None else self._foreign.pop(output.id, {})
        tokens = 0 if output.report is None else output.report.tokens
        self._open[output.id] = Finished(
            output.id,
            told.traffic_class,
            told.tenant,
            told.temperature,
            *self.pair,
            1,
            tokens=tokens,
            drafts=drafts,
        )

    def _end(self, request: Finished) -> None:
        del self._open[request.request]
        request.t = self._clock()
        for sink in self._sinks:
            sink.finished(request)


class EarlierRequests:
    """Hears of the engine that served before an update, and still ends what it began."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def ready(self, _: Ready) -> None:
        """It was restarted: nothing that anybody sees."""

    def submitted(self, request: Request, _admitted: float) -> None:
        """One that waited for its turn when the update came."""
        self._requests.begin(request, self._requests.pair_before)

    def step(self, report: StepReport) -> None:
        """Count it."""
        self._requests.step(report)

    def idle(self, _: Idle) -> None:
        """It waits for a rollback."""

    def died(self, _: Death) -> None:
        """What was left in it is lost."""
        self._requests.lose(self._requests.pair_before)


def _reached(lengths: list[int], positions: int = 0) -> tuple[int, ...]:
    """From rounds by length to rounds that reached position 1, 2, …, so many or those that any did."""
    counts = list(accumulate(reversed(lengths[1:])))[::-1]
    return tuple(counts[: positions or sum(count > 0 for count in counts)])
