"""Until when a request is to be answered."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Self

from specd.flights import Flight, Flights, Refusal, UnservedError


@dataclass(frozen=True, slots=True)
class Deadline:
    """Of one request."""

    at: float | None
    """On the loop's clock; None for never."""
    why: Refusal

    @classmethod
    def after(cls, asked: float | None, most: float | None) -> Self:
        """So many seconds from now: as asked for, and no more than the server grants."""
        seconds = min((each for each in (asked, most) if each is not None), default=None)
        if seconds is None:
            return cls(None, Refusal("", ""))
        # What a client asked for itself is no failure of the server's, nor counted as one.
        own = seconds == asked
        which, code = (
            ("specd.timeout", "request_timeout") if own else ("server.request_seconds", "deadline_exceeded")
        )
        text = f"the request was not answered whole within {seconds:g} s ({which}), and was ended"
        return cls(asyncio.get_running_loop().time() + seconds, Refusal(text, code))

    @asynccontextmanager
    async def before_it(self) -> AsyncIterator[None]:
        """What is done within is done in time. Raises `UnservedError`."""
        timeout = asyncio.timeout_at(self.at)
        try:
            async with timeout:
                yield
        except TimeoutError:
            if timeout.expired():
                raise UnservedError(self.why) from None
            raise

    @contextmanager
    def ending(self, flight: Flight, flights: Flights) -> Iterator[None]:
        """Ends the flight, should it still be under way."""
        if self.at is None:
            yield
            return
        timer = asyncio.get_running_loop().call_at(self.at, flights.end, flight, self.why)
        try:
            yield
        finally:
            timer.cancel()
