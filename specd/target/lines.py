"""Which lines there are: the one that serves, and the one before it as long as it is kept."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import structs

from engine.api import Idle, Ready, Request, StepReport
from specd.config.schema import Config
from specd.flights import Refusal, UnservedError
from specd.observers import CANARY, Ledger
from specd.restarts import Death
from specd.supervisor import Observer
from specd.target.line import Identity, Line
from specd.target.room import shortage
from specd.telemetry.prometheus import Metrics

_CROWDED: Final = Refusal(
    "the queue is full while the target is replaced; try again later", "queue_full", retry_after=10
)


class Lines:
    """New requests go to `current`. Invariant: `current` alone tells the observers how things stand."""

    def __init__(
        self,
        first: Line,
        *,
        observers: Sequence[Observer],
        aftermath: Sequence[Observer],
        switched: Callable[[Line], None],
        queue: Callable[[], int],
    ) -> None:
        """aftermath: are told of what the previous line still does. switched: called with each new `current`. queue:
        how many may wait while the door is shut.
        """
        self._observers = [Traffic(observers)]
        self._aftermath = aftermath
        self._switched = switched
        self._queue = queue
        self._door = asyncio.Event()
        self._door.set()
        self._waiting = 0
        self.current = first
        self.previous: Line | None = None
        first.supervisor.observers = self._observers

    @property
    def all(self) -> list[Line]:
        """The current one first."""
        return [self.current, *([] if self.previous is None else [self.previous])]

    async def enter(self) -> Line:
        """Where a new request goes, once the door is open. Raises `UnservedError` where too many wait at it."""
        if self._door.is_set():
            return self.current
        if self._waiting >= self._queue():
            raise UnservedError(_CROWDED)
        self._waiting += 1
        try:
            await self._door.wait()
        finally:
            self._waiting -= 1
        return self.current

    def hold(self) -> None:
        """Let nobody in until `release`: there is no room for two engines."""
        self._door.clear()

    @property
    def held(self) -> bool:
        """Whether nobody is let in: one engine takes the place of another."""
        return not self._door.is_set()

    def resume(self) -> None:
        """Start the engine of `current` again, and let requests in to it."""
        self.current.start("alone")
        self._switched(self.current)
        self.release()

    def release(self) -> None:
        """Open the door again."""
        self._door.set()

    def switch(self, line: Line) -> None:
        """Lead new requests to another line; the one before stays as `previous`."""
        self.current, self.previous = line, self.current
        self.previous.supervisor.observers = self._aftermath
        line.supervisor.observers = self._observers
        if line.supervisor.info is not None:
            for observer in self._observers:
                observer.ready(line.supervisor.info)
        self.share()
        self._switched(line)

    def share(self) -> None:
        """Divide the machine: between both while the previous one still has requests."""
        if self.previous is not None and len(self.previous.supervisor.flights):
            self.previous.move("beside")
            self.current.move("beside")
        else:
            self.current.move("alone")

    def configure(self, config: Config) -> None:
        """Hand hot settings to every engine."""
        for line in self.all:
            line.configure(config)

    def shortage(self, config: Config) -> str | None:
        """Why an engine that runs has not the memory for drafts as this config allows them, or None."""
        ready = ((line, line.supervisor.info) for line in self.all)
        rooms = ((line, info.room) for line, info in ready if info is not None and info.room is not None)
        running = config.engine.max_running
        return next(
            filter(None, (shortage(room, line.policy(config), running) for line, room in rooms)), None
        )

    def identity(self, config: Config) -> Identity | None:
        """Of what serves."""
        return self.current.identity(config)

    def close(self, why: Refusal) -> None:
        """Admit nothing any more; what is inside goes on."""
        for line in self.all:
            line.supervisor.close(why)
        self.release()

    async def empty(self) -> None:
        """Wait until nobody is inside."""
        for line in self.all:
            await line.supervisor.flights.empty()

    def __len__(self) -> int:
        return sum(len(line.supervisor.flights) for line in self.all)


class Traffic:
    """Passes on what clients asked for, without the daemon's own canaries: they are no load, and no evidence."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def ready(self, ready: Ready) -> None:
        """As it is."""
        for observer in self._observers:
            observer.ready(ready)

    def submitted(self, request: Request, admitted: float) -> None:
        """Unless it is a canary."""
        if not request.id.startswith(CANARY):
            for observer in self._observers:
                observer.submitted(request, admitted)

    def step(self, report: StepReport) -> None:
        """Without the canaries, their rounds, outputs and tokens."""
        seen = _of_clients(report)
        for observer in self._observers:
            observer.step(seen)

    def idle(self, idle: Idle) -> None:
        """As it is."""
        for observer in self._observers:
            observer.idle(idle)

    def died(self, death: Death) -> None:
        """As it is."""
        for observer in self._observers:
            observer.died(death)


def _of_clients(report: StepReport) -> StepReport:
    own = [each for each in report.outputs if each.id.startswith(CANARY)]
    if not own:
        return report
    decoded = {
        one.request for one in report.rounds
    }  # the first token of a text is of no round, and not counted
    return structs.replace(
        report,
        running=max(report.running - sum(each.finish is None for each in own), 0),
        committed=max(report.committed - sum(len(each.tokens) for each in own if each.id in decoded), 0),
        rounds=[one for one in report.rounds if not one.request.startswith(CANARY)],
        outputs=[each for each in report.outputs if not each.id.startswith(CANARY)],
    )


class Aftermath:
    """Counts what a line still does that serves no new requests. How things stand is for the current one to tell."""

    def __init__(self, metrics: Metrics, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._ledger = ledger
        self._clock = clock

    def ready(self, _: Ready) -> None:
        """It was restarted: nothing that anybody sees."""

    def submitted(self, request: Request, admitted: float) -> None:
        """One that waited for its turn when the line was left."""
        self._metrics.request_started(request.id, admitted)

    def step(self, report: StepReport) -> None:
        """Its tokens count."""
        now = self._ledger
        seen = structs.replace(
            report,
            running=now.running,
            waiting=now.waiting,
            load_state=now.load_state,
            kv=now.kv or report.kv,
        )
        self._metrics.observe_step(seen, self._clock())

    def idle(self, _: Idle) -> None:
        """It waits for a rollback."""

    def died(self, death: Death) -> None:
        """Counted by reason, as any other."""
        self._metrics.engine_restarted(death.reason)
