"""What listeners are told: the state in parts, and each part again when it has changed.

look   all parts as they are at one moment, made at most once a second, and only while somebody listens
part   of a look: a document, and the number of the look in which it was last another one

A listener is no more than the number of the look up to which it has been told. So one that reads slowly misses what was
overtaken meanwhile and holds nothing, and one that comes back goes on where it was.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

MOST: Final = 32
"""Listeners at a time."""

_encode = msgspec.json.Encoder().encode


class Part(NamedTuple):
    """A document of the state, as JSON."""

    name: str
    changed: int
    body: bytes


class News(NamedTuple):
    """What a listener has not been told yet; may be nothing."""

    id: str
    parts: tuple[Part, ...]


class CrowdedError(Exception):
    """So many listen already that nobody else can."""


class Feed:
    """Owner of the looks."""

    def __init__(
        self,
        sources: Mapping[str, Callable[[], Any]],
        *,
        interval: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """sources: each part's document, in the order in which parts are told. interval: seconds between two looks."""
        self._sources = sources
        self._interval = interval
        self._clock = clock
        self._life = secrets.token_hex(4)
        self._number = 0
        self._looked_at = float("-inf")
        self._parts: tuple[Part, ...] = ()
        self._closed = asyncio.Event()
        self.listeners = 0

    @property
    def names(self) -> Collection[str]:
        """Of the parts."""
        return self._sources.keys()

    def close(self) -> None:
        """Everybody has been told enough."""
        self._closed.set()

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """For one who listens. Raises `CrowdedError`."""
        if self.listeners >= MOST:
            raise CrowdedError
        self.listeners += 1
        try:
            yield
        finally:
            self.listeners -= 1

    async def listen(self, names: Collection[str], last: str, seconds: float) -> AsyncGenerator[News]:
        """For so long: first all of these parts, or where `last` is the id of news of this daemon what came after it;
        then at every look what is new.
        """
        told, end = self._told(last), self._clock() + seconds
        while not self._closed.is_set() and self._clock() < end:
            self._look()
            parts = tuple(part for part in self._parts if part.changed > told and part.name in names)
            told = self._number
            yield News(f"{self._life}-{told}", parts)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), self._interval)

    def _told(self, last: str) -> int:
        """Up to which look; 0, before the first one, where the id is not one that was given in this life."""
        life, _, number = last.partition("-")
        known = life == self._life and number.isascii() and number.isdecimal() and len(number) < 20
        return int(number) if known and int(number) <= self._number else 0

    def _look(self) -> None:
        now = self._clock()
        if now - self._looked_at < self._interval / 2:  # another listener has just looked
            return
        self._looked_at = now
        self._number += 1
        before = {part.name: part for part in self._parts}
        self._parts = tuple(self._part(name, before.get(name)) for name in self._sources)

    def _part(self, name: str, before: Part | None) -> Part:
        body = _encode(self._sources[name]())
        return before if before is not None and before.body == body else Part(name, self._number, body)
