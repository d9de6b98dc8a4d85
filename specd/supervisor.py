"""Keeps one engine running: starts it, watches it, restarts it, and tells every request what became of it.

  STARTING ──Ready──▶ READY ──exit, hang, nonsense──▶ DOWN ──after a delay──▶ STARTING
  too many deaths in a row: FAILING until the next Ready

While STARTING or DOWN requests wait; while FAILING they are refused, but the engine is tried again and again,
so that the control plane stays up and a repaired cause heals by itself.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Never, Protocol

from msgspec import structs

from engine.api import (
    Cancel,
    Configure,
    FromEngine,
    Idle,
    Launch,
    Loading,
    Move,
    Ready,
    Refused,
    Request,
    Share,
    Shutdown,
    StepReport,
    Submit,
    ToEngine,
)
from policies.cost import StepCosts
from specd.admission.fair import Weight, equal
from specd.engine_process import EngineGoneError, EngineProcess
from specd.errors import MemoryShortageError, ModelError
from specd.flights import Flight, Flights, Refusal, UnservedError
from specd.restarts import Death, DeathReason, Patience

log = logging.getLogger(__name__)

_PATIENT: Final = Patience()
_END_GRACE: Final = 2.0  # seconds in which an engine may end by itself
_LOST: Final = "the engine stopped ({}) while this request ran; it is being restarted, send the request again"


class EngineState(StrEnum):
    """Where the engine is in its life."""

    STARTING = "starting"
    READY = "ready"
    DOWN = "down"
    FAILING = "failing"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Limits:
    """What the supervisor takes from the config; asked for anew each time, since it is hot."""

    places: int
    hang_seconds: float
    start_seconds: float | None
    """None for a start that others decide on."""
    unread: int = 4096
    """Outputs of a request that wait for its client."""


class Observer(Protocol):
    """Told of everything the engine does, synchronously and in order; must be quick and must not raise."""

    def ready(self, ready: Ready) -> None:
        """A new engine accepts requests."""

    def submitted(self, request: Request, admitted: float) -> None:
        """A request, admitted at this time of the supervisor's clock, was handed to the engine."""

    def step(self, report: StepReport) -> None:
        """A step was taken. Its `waiting` includes the requests that the engine does not know yet."""

    def idle(self, idle: Idle) -> None:
        """There was nothing to do."""

    def died(self, death: Death) -> None:
        """The engine ended without having been asked to."""


class EngineFailedError(Exception):
    """The engine never became ready, and trying again has not helped."""


class _DyingError(Exception):
    """This engine is at its end. `text` None: how it exits says it all."""

    def __init__(self, reason: DeathReason, text: str | None, *, grace: float = _END_GRACE) -> None:
        super().__init__(text)
        self.reason: DeathReason = reason
        self.text = text
        self.grace = grace


class Supervisor:
    """Owner of the engine process and of the requests on their way to it."""

    def __init__(
        self,
        *,
        command: Sequence[str],
        launch: Callable[[], Launch],
        limits: Callable[[], Limits],
        window: int,
        weight: Weight = equal,
        observers: Sequence[Observer] = (),
        patience: Patience = _PATIENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`launch` is asked at every start, so that a restarted engine gets the settings of today.

        `window` is how many requests the engine holds at a time: those it runs and enough to choose the next
        from. The rest waits here. `weight` is a tenant's share of the engine.
        """
        self._command = command
        self._launch = launch
        self._limits = limits
        self.observers: Sequence[Observer] = observers
        """Told from now on; may be replaced."""
        self._patience = patience
        self._clock = clock
        self._process: EngineProcess | None = None
        self._failures = 0
        self._ready_at: float | None = None
        self._start_seconds = 0.0  # that the last start took which came to its end
        self._first_ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._closed: Refusal | None = None
        self._failing: Refusal | None = None
        self.state = EngineState.STARTING
        self.info: Ready | None = None
        """Of the last engine that became ready; kept while the next one starts."""
        self.costs: StepCosts | None = None
        """What the engine last said that a step costs."""
        self.loading = ""
        """What the engine last said of its start."""
        self.restarts = 0
        self.last_death: Death | None = None
        self.signs_of_life = 0
        """Messages of engines so far."""
        self.flights = Flights(
            places=lambda: limits().places,
            gate=lambda: self._closed or self._failing,
            window=window,
            clock=clock,
            cancel=lambda request: self._send(Cancel(request)),
            weight=weight,
            most_unread=lambda: limits().unread,
        )

    @property
    def pid(self) -> int | None:
        """Of the engine process, while there is one."""
        return None if self._process is None else self._process.pid

    async def engine_info(self) -> Ready:
        """What the engine serves, waiting for its first start. Raises `UnservedError` if that never comes."""
        return await asyncio.shield(self._first_ready) if self.info is None else self.info

    def close(self, why: Refusal) -> None:
        """Admit no more requests; those inside go on."""
        self._closed = why

    def end_all(self, why: Refusal) -> None:
        """Close, and end what is inside."""
        self.close(why)
        self.flights.lose_all(why)
        if not self._first_ready.done():
            self._first_ready.set_exception(UnservedError(why))
            self._first_ready.exception()  # marks it as seen: maybe nobody waits

    def submit(self, flight: Flight, request: Request) -> None:
        """Queue an admitted request; its outputs arrive in the flight."""
        self.flights.queue(flight, request)
        self._submit_waiting()

    def configure(self, message: Configure) -> None:
        """Hand new hot settings to the engine; one that is yet to start takes them from `launch`."""
        self._send(message)

    def move(self, share: Share) -> None:
        """Have the engine take another share of the machine; one that is yet to start takes it from `launch`."""
        self._send(Move(share))

    async def run(self) -> None:
        """Keep an engine running until cancelled.

        Raises `ModelError` when the first start is refused, and `EngineFailedError` when the engine fails
        again and again before it was ever ready.
        """
        self.state = EngineState.STARTING
        try:
            while True:
                self._mourn(await self._one_life())
                await asyncio.sleep(self._patience.delay(self._failures))
                self.restarts += 1
                if self.state is EngineState.DOWN:
                    self.state = EngineState.STARTING
        finally:
            self.state = EngineState.STOPPED

    async def _one_life(self) -> Death:
        """Start a process and follow it to its end, its own or ours."""
        try:
            self._process = process = await EngineProcess.start(self._command)
        except OSError as error:
            return Death("crash", f"it could not be started: {error}", None)
        grace = _END_GRACE
        try:
            await self._serve(process)
        except _DyingError as dying:
            cause, grace = dying, dying.grace
            if not grace:
                await process.testify(_END_GRACE / 2)
        except asyncio.CancelledError:
            process.send(Shutdown())
            raise
        finally:
            self._process = None
            ending = await process.end(grace=grace)
        crashed = cause.reason == "exit" and ending != "exit code 0"
        reason = "crash" if crashed else cause.reason
        return Death(reason, cause.text or ending, self._ready_seconds(), process.last_lines)

    async def _serve(self, process: EngineProcess) -> Never:
        self._ready_at, began = None, self._clock()
        await self._load(process)
        self._ready_at = self._clock()
        self._start_seconds = self._ready_at - began
        await self._pump(process)

    def _ready_seconds(self) -> float | None:
        return None if self._ready_at is None else self._clock() - self._ready_at

    async def _load(self, process: EngineProcess) -> None:
        """Launch the engine and wait until it is ready. Raises `_DyingError` when it does not get there."""
        process.send(self._launch())
        limit = self._limits().start_seconds
        try:
            async with asyncio.timeout(limit):
                ready = await self._first_answer(process)
        except TimeoutError:
            raise _DyingError("start_timeout", f"it was not ready after {limit:g} s", grace=0) from None
        self.info, self.state, self._failing = ready, EngineState.READY, None
        if not self._first_ready.done():
            self._first_ready.set_result(ready)
        for observer in self.observers:
            observer.ready(ready)
        self._submit_waiting()

    async def _first_answer(self, process: EngineProcess) -> Ready:
        while True:
            match await self._receive(process):
                case Ready() as ready:
                    return ready
                case Refused(message, lacks_memory) if self.info is None:
                    raise (MemoryShortageError if lacks_memory else ModelError)(message)
                case Refused(message):
                    raise _DyingError("refused", f"it refused to start: {message}")
                case Loading(message):
                    self.loading = message
                    log.info("engine: %s", message)
                case other:
                    raise _DyingError("protocol", f"it sent {type(other).__name__} before it was ready")

    async def _pump(self, process: EngineProcess) -> Never:
        """Pass on what the engine says. Ends only by `_DyingError`."""
        while True:
            limit = self._limits().hang_seconds
            try:
                async with asyncio.timeout(limit):
                    message = await self._receive(process)
            except TimeoutError:
                text = f"killed: it neither stepped nor said it was idle for {limit:g} s"
                raise _DyingError("hang", text, grace=0) from None
            await self._take(message)

    async def _receive(self, process: EngineProcess) -> FromEngine:
        try:
            message = await process.receive()
        except EngineGoneError as gone:
            raise _DyingError(gone.reason, None if gone.reason == "exit" else str(gone)) from gone
        self.signs_of_life += 1
        return message

    async def _take(self, message: FromEngine) -> None:
        match message:
            case StepReport() as report:
                for output in report.outputs:
                    self.flights.deliver(output)
                self._submit_waiting()
                await _sent()
                seen = structs.replace(report, waiting=report.waiting + self.flights.waiting)
                for observer in self.observers:
                    observer.step(seen)
            case Idle() as idle:
                self.costs = idle.costs or self.costs
                for observer in self.observers:
                    observer.idle(idle)
            case other:
                raise _DyingError("protocol", f"it sent {type(other).__name__} while running")

    def _mourn(self, death: Death) -> None:
        """Tell everyone, and decide what happens to those who wait."""
        self.last_death = death
        self._failures = self._patience.count(self._failures, death)
        if self.info is None and self._failures >= self._patience.failures_at_start:
            raise EngineFailedError(
                f"the engine did not start in {self._failures} tries; the last one ended with: {death.text}"
            )
        delay = self._patience.delay(self._failures)
        back = max(1, math.ceil(delay + self._start_seconds))
        lost = self.flights.lose_submitted(Refusal(_LOST.format(death.text), "engine_restarted", back))
        log.error(
            "the engine stopped (%s) and took %d requests along; next start in %.1f s",
            death.text,
            lost,
            delay,
        )
        if self.info is not None and self._failures >= self._patience.failures_to_refuse:
            self._refuse(death, back)
        else:
            self.state = EngineState.DOWN
        for observer in self.observers:
            observer.died(death)

    def _refuse(self, death: Death, seconds: int) -> None:
        self.state = EngineState.FAILING
        self._failing = Refusal(
            f"the engine failed {self._failures} times in a row, the last time with: {death.text};"
            f" it may be back in {seconds} s",
            "engine_unavailable",
            retry_after=seconds,
        )
        self.flights.lose_waiting(self._failing)

    def _submit_waiting(self) -> None:
        if self.state is EngineState.READY:
            for request, admitted in self.flights.to_submit():
                self._send(Submit(request))
                for observer in self.observers:
                    observer.submitted(request, admitted)

    def _send(self, message: ToEngine) -> None:
        if self._process is not None:
            self._process.send(message)


async def _sent() -> None:
    """Let whoever was handed something write it, and the loop send that, before it is counted: clients wait for it."""
    for _ in ("written", "sent"):
        await asyncio.sleep(0)
