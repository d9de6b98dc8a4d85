"""Server-sent events over bare ASGI."""

from typing import Any, Final

import msgspec
from starlette.types import Send

PING_SECONDS: Final = 15.0
"""A comment is sent when there was nothing else for this long: proxies cut connections that are silent."""

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_encode = msgspec.json.Encoder().encode


class EventStream:
    """One response. `send` waits while the client reads slowly, so nothing piles up here."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def open(self) -> None:
        """Status 200 and the headers."""
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def event(self, payload: Any) -> None:
        """One `data:` line with the payload as JSON."""
        await self._write(b"data: " + _encode(payload) + b"\n\n")

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

    async def close(self) -> None:
        """End of the response."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
