"""Server-sent events over bare ASGI."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from starlette.types import Send

from specd.tasks import ended

PING_SECONDS: Final = 15.0
"""A comment is sent when there was nothing else for this long: proxies cut connections that are silent."""

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_encode = msgspec.json.Encoder().encode
_PLACE: Final = secrets.token_hex(16)
"""Stands where the text will be: nobody can send it, since nobody knows it."""


class EventStream:
    """One response. `send` waits while the client reads slowly, so nothing piles up here."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._clock = asyncio.get_running_loop().time
        self._wrote_at = self._clock()

    async def open(self) -> None:
        """Status 200 and the headers."""
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def event(self, payload: Any) -> None:
        """One `data:` line with the payload as JSON."""
        await self._write(_event(payload))

    async def moulded(self, mould: "Mould", text: str) -> None:
        """The event of this text."""
        await self._write(mould.event(text))

    async def part(self, name: str, body: bytes, identity: str | None) -> None:
        """An event of this name, and of this id if it has one, with a body that is JSON already."""
        given = b"" if identity is None else b"id: %b\n" % identity.encode()
        await self._write(b"%bevent: %b\ndata: %b\n\n" % (given, name.encode(), body))

    async def done(self) -> None:
        """OpenAI's mark of a complete stream."""
        await self._write(b"data: [DONE]\n\n")

    async def ping(self) -> None:
        """A comment, which clients ignore."""
        await self._write(b": ping\n\n")

    @asynccontextmanager
    async def kept_open(self, seconds: float) -> AsyncIterator[None]:
        """Within, a ping is sent whenever nothing else was for so long."""
        pinging = asyncio.ensure_future(self._ping_in_silence(seconds))
        try:
            yield
        finally:
            await ended(pinging)

    async def _ping_in_silence(self, seconds: float) -> None:
        # One timer for a stream: arming and disarming one for each event would cost as much as the event does.
        while True:
            left = self._wrote_at + seconds - self._clock()
            if left > 0:
                await asyncio.sleep(left)
            else:
                await self.ping()

    async def close(self) -> None:
        """End of the response."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, data: bytes) -> None:
        self._wrote_at = self._clock()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})


class Mould:
    """Events that are alike but for one text, which most are: the rest of them is written once."""

    def __init__(self, payload: Callable[[str], Any]) -> None:
        """payload: what is sent of a text, which is a string of it, once."""
        self._before, self._after = _event(payload(_PLACE)).split(_encode(_PLACE))

    def event(self, text: str) -> bytes:
        """As `EventStream.event` would write it."""
        return b"".join((self._before, _encode(text), self._after))


def _event(payload: Any) -> bytes:
    return b"data: " + _encode(payload) + b"\n\n"
