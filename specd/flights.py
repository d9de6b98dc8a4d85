"""The requests between a client and the engine.

place      what a request takes on admission; there are `engine.max_running + server.max_queue` of them
waiting    has a place and a prompt, the engine does not know it yet: an engine that dies does not hurt it
submitted  the engine has it: an engine that dies takes it along if anything was said of it; else it waits again, once,
           since it may be what the engine dies of
aside      the daemon's own, of which nobody is to notice anything: it takes no place, and is counted nowhere

Tenants take turns in the waiting line, and where the house is full, whoever waits for the tenant with most places
leaves for one with few: `specd.admission.fair`.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from engine.api import Output, Request
from specd.admission.fair import FairLine, Weight

_NOT_MUCH: Final = 16  # outputs that wait for their reader
_RECENT: Final = 32
_LONGEST_RETRY: Final = 120


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request gets no answer, or half of one, for a reason that is not in the request."""

    message: str
    code: str
    retry_after: int | None = None


class UnservedError(Exception):
    """Carries the refusal to whoever speaks with the client."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


_UNREAD: Final = Refusal(
    "this request was ended: its client reads more slowly than the model writes, and too much waits for it"
    " (server.max_unread)",
    "slow_reader",
)
RECALLED: Final = Refusal(
    "the target was replaced before this request was answered; send it again", "recalled"
)
"""What a request gets that is to begin anew on another target. Whoever answers it sees to that; no client is told."""


def retry_after(finished: Sequence[float], oldest: float, now: float) -> int:
    """Whole seconds until a place is likely to come free.

    `finished` holds the times of recent completions, ascending; the mean gap between them, the one still open
    included, is the estimate. Without any, nothing has finished for as long as the `oldest` request is here.
    """
    gap = (now - finished[0]) / len(finished) if finished else now - oldest
    return min(max(1, math.ceil(gap)), _LONGEST_RETRY)


class Flight:
    """One request's place and, once submitted, its outputs. Use as a context: leaving it frees the place."""

    def __init__(self, *, tenant: str, admitted: float, release: Callable[["Flight"], None]) -> None:
        self.tenant = tenant
        self.admitted = admitted
        self.request: Request | None = None
        self.done = False
        self.begun = False
        """Something was sent to the client that cannot be taken back."""
        self.heard = False
        """The engine has said something of it."""
        self.orphaned = False
        """An engine died that had it and had said nothing of it."""
        self.tokens = 0
        """That came of it so far, all texts together."""
        self._release = release
        self._ended: set[int] = set()
        self._outputs: deque[Output | Refusal] = deque()
        self._reader: asyncio.Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._release(self)

    def put(self, output: Output | Refusal) -> None:
        """Hand over the next output; a refusal is the last, and so is the output that finishes the last text."""
        self._outputs.append(output)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        if isinstance(output, Refusal):
            self.done = True
            return
        self.heard = True
        self.tokens += len(output.tokens)
        if output.finish is not None:
            self._ended.add(output.index)
            self.done = self.request is None or len(self._ended) == self.request.n

    @property
    def unread(self) -> int:
        """Outputs that nobody has asked for yet."""
        return len(self._outputs)

    def forget_unread(self) -> None:
        """Nobody will ask for them."""
        self._outputs.clear()

    async def next(self) -> Output:
        """The next output, for one reader. Raises `UnservedError` when there will be none. Cancelling loses nothing."""
        while not self._outputs:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        output = self._outputs.popleft()
        if isinstance(output, Refusal):
            raise UnservedError(output)
        if output.finish == "error":
            code = "request_refused" if output.refused else "engine_error"
            raise UnservedError(Refusal(output.error or "the engine gave this request up", code))
        return output

    async def outputs(self) -> AsyncIterator[Output]:
        """All of them, up to the end of the last text."""
        while self._outputs or not self.done:
            yield await self.next()


class Flights:
    """The table of all flights. Knows no engine: whoever owns one asks `to_submit` and feeds `deliver`.

    Invariant: every flight with a request is either in the waiting line or in the submitted table or done. Those that
    are submitted are inside the line.
    """

    def __init__(
        self,
        *,
        places: Callable[[], int],
        gate: Callable[[], Refusal | None],
        window: int,
        clock: Callable[[], float],
        cancel: Callable[[str], None],
        weight: Weight,
        most_unread: Callable[[], int],
    ) -> None:
        """`gate` says why nobody is admitted now, if so; `window` bounds how many the engine holds at a time;
        `cancel` is told the id of a submitted request that was left before its end; `weight` is a tenant's share;
        `most_unread` outputs wait for whoever is to read them.
        """
        self._places = places
        self._gate = gate
        self._window = window
        self._clock = clock
        self._cancel = cancel
        self._most_unread = most_unread
        self._all: set[Flight] = set()
        self._aside: set[Flight] = set()
        self._held: Counter[str] = Counter()
        self._waiting: FairLine[Flight] = FairLine(weight)
        self._submitted: dict[str, Flight] = {}
        self._finished: deque[float] = deque(maxlen=_RECENT)
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def waiting(self) -> int:
        """Requests that the engine does not know yet."""
        return len(self._waiting)

    def admit(self, tenant: str = "default") -> Flight:
        """A place for one more request. Raises `UnservedError` when there is none or the house is closed."""
        closed = self._gate()
        if closed is not None:
            raise UnservedError(closed)
        if len(self._all) >= self._places():
            self._make_room(tenant)
        flight = Flight(tenant=tenant, admitted=self._clock(), release=self._leave)
        self._all.add(flight)
        self._held[tenant] += 1
        self._empty.clear()
        return flight

    def admit_aside(self, tenant: str) -> Flight:
        """One more for which nobody has to leave, and for whose end nobody waits. Raises `UnservedError` when the house
        is closed.
        """
        closed = self._gate()
        if closed is not None:
            raise UnservedError(closed)
        flight = Flight(tenant=tenant, admitted=self._clock(), release=self._leave_aside)
        self._aside.add(flight)
        return flight

    def _make_room(self, tenant: str) -> None:
        """End a request that waits for a tenant with more than its share. Raises `UnservedError` if there is none."""
        last = self._waiting.displaced(tenant, self._held)
        if last is None:
            raise UnservedError(self._full())
        self.end(last, self._full())
        self._give_up_place(last)

    def _full(self) -> Refusal:
        oldest = min((flight.admitted for flight in self._all), default=self._clock())
        return Refusal(
            f"the queue is full: {len(self._all)} requests are running or waiting; try again later",
            code="queue_full",
            retry_after=retry_after(self._finished, oldest, self._clock()),
        )

    def queue(self, flight: Flight, request: Request) -> None:
        """The flight has its prompt and may be submitted; one that was ended meanwhile is not."""
        flight.request = request
        if not flight.done:
            self._waiting.add(flight.tenant, flight)

    def to_submit(self) -> Iterator[tuple[Request, float]]:
        """Requests the engine may have now with the time of their admission, tenant by tenant, oldest first.

        Each counts as submitted once it is yielded.
        """
        while self._waiting and len(self._submitted) < self._window:
            flight = self._waiting.next()
            assert flight.request is not None
            self._submitted[flight.request.id] = flight
            self._waiting.used(flight.tenant, len(flight.request.prompt))
            yield flight.request, flight.admitted

    def deliver(self, output: Output) -> None:
        """Pass an output on; those of requests that were left meanwhile are dropped."""
        flight = self._submitted.get(output.id)
        if flight is None:
            return
        flight.put(output)
        self._waiting.used(flight.tenant, len(output.tokens))
        if flight.done:
            self._land(flight)
        elif flight.unread > _NOT_MUCH and flight.unread > self._most_unread():
            flight.forget_unread()
            self.end(flight, _UNREAD)

    def end(self, flight: Flight, why: Refusal) -> None:
        """End one request, wherever it is."""
        if not flight.done:
            self._withdraw(flight)
            flight.put(why)

    def recall(self) -> int:
        """Have every request begin anew of which nothing was sent yet. Returns how many those were."""
        recalled = [flight for flight in self._all if not flight.done and not flight.begun]
        for flight in recalled:
            flight.put(RECALLED)
        return len(recalled)

    def lose_submitted(self, why: Refusal) -> int:
        """The engine has gone. What it had begun to answer ends, and so does what had lost an engine before; the rest
        is first in line again. Returns how many were ended.
        """
        lost = 0
        for flight in reversed(list(self._submitted.values())):
            if flight.heard or flight.orphaned or flight.done:
                self._land(flight)
                flight.put(why)
                lost += 1
            else:
                self._put_back(flight)
        return lost

    def _put_back(self, flight: Flight) -> None:
        assert flight.request is not None
        del self._submitted[flight.request.id]
        flight.orphaned = True
        self._waiting.put_back(flight.tenant, flight)
        self._waiting.used(flight.tenant, -len(flight.request.prompt))

    def lose_waiting(self, why: Refusal) -> None:
        """End what the engine never got."""
        lost = list(self._waiting)
        self._waiting.clear()
        for flight in lost:
            flight.put(why)

    def lose_all(self, why: Refusal) -> None:
        """End every flight, those without a prompt included."""
        for flight in (*self._all, *self._aside):
            if not flight.done:
                flight.put(why)
        self._waiting.clear()
        for flight in list(self._submitted.values()):
            self._land(flight)

    async def empty(self) -> None:
        """Wait until the last one has left."""
        await self._empty.wait()

    def _leave(self, flight: Flight) -> None:
        self._withdraw(flight)
        if self._give_up_place(flight) and flight.done:
            self._finished.append(self._clock())
        if not self._all:
            self._empty.set()

    def _leave_aside(self, flight: Flight) -> None:
        self._withdraw(flight)
        self._aside.discard(flight)

    def _withdraw(self, flight: Flight) -> None:
        """Out of the line, or out of the engine."""
        self._waiting.drop(flight.tenant, flight)
        if self._land(flight):
            assert flight.request is not None
            self._cancel(flight.request.id)

    def _land(self, flight: Flight) -> bool:
        """The engine has it no more. False where it had not."""
        if flight.request is None or self._submitted.pop(flight.request.id, None) is None:
            return False
        self._waiting.left(flight.tenant)
        return True

    def _give_up_place(self, flight: Flight) -> bool:
        """Leave it to others. False where that has happened."""
        if flight not in self._all:
            return False
        self._all.remove(flight)
        self._held[flight.tenant] -= 1
        if not self._held[flight.tenant]:
            del self._held[flight.tenant]
        return True
