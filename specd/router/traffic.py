"""What is in flight, where it goes by that, and what came of it."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from policies.settings import PolicySettings
from specd.config.schema import Config
from specd.http.errors import ApiError
from specd.router.choice import NAMES, LoadWatch, Name, Reason, choose, settings_for
from specd.router.instances import Instances
from specd.telemetry.tally import Histogram

OUTCOMES: Final = ("answered", "refused", "failed", "not_taken", "left")
"""refused: by the instance, with a 4xx. not_taken: the other instance was asked instead. left: the client did."""

FIRST_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds until the first piece of an answer."""


class NotTakenError(Exception):
    """An instance has not begun with a request; the text is a clause that says why."""


class Flight:
    """A request, for as long as it is here."""

    def __init__(self, tokens: float) -> None:
        """tokens: of its prompt, about."""
        self.tokens = tokens

    def grew(self, tokens: int) -> None:
        """So many more were written."""
        self.tokens += tokens


class Outcome:
    """What is known of a request that an instance was asked."""

    def __init__(self, first: Histogram, clock: Callable[[], float]) -> None:
        self.status = 0
        self.broke_off = False
        self._first = first
        self._clock = clock
        self._began: float | None = clock()

    def piece(self) -> None:
        """A piece of the answer has come."""
        if self._began is not None and self.status < 400:
            self._first.add(self._clock() - self._began)
            self._began = None

    @property
    def name(self) -> str:
        """Of `OUTCOMES`, where nothing was raised."""
        if self.broke_off or self.status >= 500:
            return "failed"
        return "answered" if self.status < 400 else "refused"


class Traffic:
    """All requests for text that are at the router."""

    def __init__(
        self, instances: Instances, config: Config, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._instances = instances
        self._clock = clock
        self._flights: set[Flight] = set()
        self._watch = LoadWatch(_settings(config), clock())
        self._closed = False
        self._empty = asyncio.Event()
        self._empty.set()
        self.outcomes: Counter[tuple[Name, str]] = Counter(
            {(name, outcome): 0 for name in NAMES for outcome in OUTCOMES}
        )
        self.reasons: Counter[Reason] = Counter(
            dict.fromkeys(("drafts", "load", "asked", "only_one", "none"), 0)
        )
        self.first: dict[str, Histogram] = {name: Histogram(FIRST_BOUNDS) for name in NAMES}

    def configure(self, config: Config) -> None:
        """By these rules from now on."""
        self._watch.configure(_settings(config))

    def close(self) -> None:
        """Take no more."""
        self._closed = True

    async def empty(self) -> None:
        """Nothing is in flight."""
        await self._empty.wait()

    def __len__(self) -> int:
        return len(self._flights)

    @contextmanager
    def flight(self, body: bytes, config: Config) -> Iterator[Flight]:
        """A request is here. Raises `ApiError` where there is no room."""
        self._admit(config.server.max_queue)
        flight = Flight(len(body) / config.router.bytes_per_token)
        self._flights.add(flight)
        self._empty.clear()
        try:
            yield flight
        finally:
            self._flights.discard(flight)
            self._catch_up()
            if not self._flights:
                self._empty.set()

    def choose(self, *, declined: bool) -> tuple[Name, ...]:
        """Whom to ask for the request that came last, and is here. declined: it wants no drafts."""
        self._watch.arrived(self._clock(), len(self._flights), self._context())
        choice = choose(self._watch, self._instances.down, declined=declined)
        self.reasons[choice.reason] += 1
        return choice.order

    def any_one(self) -> tuple[Name, ...]:
        """Whom to ask for what is not a request for text, the first one first."""
        return tuple(name for name in NAMES if name not in self._instances.down)

    @contextmanager
    def outcome(self, name: Name) -> Iterator[Outcome]:
        """A request is at this instance; what comes of it is counted."""
        outcome = Outcome(self.first[name], self._clock)
        came_to = "failed"
        try:
            with self._instances.at(name):
                yield outcome
            came_to = outcome.name
        except NotTakenError:
            came_to = "not_taken"
            raise
        except asyncio.CancelledError:
            came_to = "left"
            raise
        finally:
            self.outcomes[name, came_to] += 1

    def status(self) -> dict[str, Any]:
        """For people."""
        self._catch_up()
        limit = self._watch.limit
        return {
            "state": limit.state.name.lower(),
            "running": len(self._flights),
            "context_tokens": self._context(),
            "new_requests_go_to": "speculating" if self._watch.drafts else "plain",
            "because": limit.text,
            "decisions": dict(self.reasons),
        }

    @property
    def load_state(self) -> int:
        """As `specd_load_state` has it."""
        self._catch_up()
        return int(self._watch.limit.state)

    def _catch_up(self) -> None:
        self._watch.passed(self._clock(), len(self._flights), self._context())

    def _context(self) -> int:
        return round(sum(flight.tokens for flight in self._flights))

    def _admit(self, most: int) -> None:
        if self._closed:
            raise ApiError(
                503, "the router is shutting down; send the request again later", code="shutting_down"
            )
        if len(self._flights) >= most:
            raise ApiError(
                429,
                f"{most} requests are under way (server.max_queue): send it again when some have ended",
                code="queue_full",
                headers={"Retry-After": "1"},
            )


def _settings(config: Config) -> PolicySettings:
    return settings_for(config.policy.settings(), config.router.draft)
