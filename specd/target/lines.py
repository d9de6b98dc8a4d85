"""Which lines there are: the one that serves, and the one before it as long as it is kept."""

from collections.abc import Callable, Sequence

from msgspec import structs

from engine.api import Idle, Ready, Request, StepReport
from specd.config.schema import Config
from specd.flights import Refusal
from specd.observers import Ledger
from specd.restarts import Death
from specd.supervisor import Observer
from specd.target.line import Identity, Line
from specd.telemetry.prometheus import Metrics


class Lines:
    """New requests go to `current`. Invariant: `current` alone tells the observers how things stand."""

    def __init__(
        self,
        first: Line,
        *,
        observers: Sequence[Observer],
        aftermath: Sequence[Observer],
        switched: Callable[[Line], None],
    ) -> None:
        """aftermath: are told of what the previous line still does. switched: called with each new `current`."""
        self._observers = observers
        self._aftermath = aftermath
        self._switched = switched
        self.current = first
        self.previous: Line | None = None
        first.supervisor.observers = observers

    @property
    def all(self) -> list[Line]:
        """The current one first."""
        return [self.current, *([] if self.previous is None else [self.previous])]

    def switch(self, line: Line) -> None:
        """Lead new requests to another line; the one before stays as `previous`."""
        self.current, self.previous = line, self.current
        self.previous.supervisor.observers = self._aftermath
        line.supervisor.observers = self._observers
        if line.supervisor.info is not None:
            for observer in self._observers:
                observer.ready(line.supervisor.info)
        self._switched(line)

    def configure(self, config: Config) -> None:
        """Hand hot settings to every engine."""
        for line in self.all:
            line.configure(config)

    def identity(self, config: Config) -> Identity | None:
        """Of what serves."""
        return self.current.identity(config)

    def close(self, why: Refusal) -> None:
        """Admit nothing any more; what is inside goes on."""
        for line in self.all:
            line.supervisor.close(why)

    async def empty(self) -> None:
        """Wait until nobody is inside."""
        for line in self.all:
            await line.supervisor.flights.empty()

    def __len__(self) -> int:
        return sum(len(line.supervisor.flights) for line in self.all)


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
