"""One HTTP connection, with an end to what a client may make it hold: a head without end, a request that never
comes, an answer that nobody reads.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from specd.http.asgi import error_response
from specd.http.errors import ApiError

log = logging.getLogger(__name__)


class Bounds(NamedTuple):
    """What a client may take."""

    head_bytes: int = 64 << 10
    """Of request line and headers together."""
    slow_seconds: float = 60.0
    """To send a request whole; and to read on, once what waits for it fills the connection's buffer."""


class Connection(HttpToolsProtocol):
    """Cut off where its client is too slow. What it was asked is then cancelled, as for one that has left."""

    def __init__(self, *args: Any, bounds: Callable[[], Bounds] = Bounds, **options: Any) -> None:
        """bounds: those of now, asked for each time."""
        super().__init__(*args, **options)
        self._bounds = bounds
        self._arriving: asyncio.TimerHandle | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._in_head = False
        self._head_ended = False  # in the data at hand
        self._head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client that says nothing is too slow as well."""
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """No timer outlives it."""
        for timer in (self._arriving, self._leaving):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Counts what has come of a head that is not complete yet."""
        if self.transport.is_closing():
            return
        self._head_ended = False
        super().data_received(data)
        if self._in_head and not self._head_ended and not self.transport.is_closing():
            self._head += len(data)
            if self._head > self._bounds().head_bytes:
                self.send_400_response(
                    f"the head of the request is longer than {self._bounds().head_bytes} bytes"
                )

    def on_message_begin(self) -> None:
        """The next request on this connection."""
        super().on_message_begin()
        self._in_head, self._head = True, 0
        self._await_request()

    def on_headers_complete(self) -> None:
        """A head that came whole may be too long as well."""
        size = len(self.url) + sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)
        self._in_head, self._head_ended = False, True
        app = self.app
        if size > self._bounds().head_bytes:
            self.app = _too_long(self._bounds().head_bytes)
        try:
            super().on_headers_complete()
        finally:
            self.app = app

    def on_message_complete(self) -> None:
        """The request is here."""
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None
        super().on_message_complete()

    def pause_writing(self) -> None:
        """The client reads more slowly than it is written to."""
        super().pause_writing()
        if self._leaving is None:
            self._leaving = self.loop.call_later(self._bounds().slow_seconds, self._cut, "read its answer")

    def resume_writing(self) -> None:
        """It has read on."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        super().resume_writing()

    def _await_request(self) -> None:
        if self._arriving is None:
            self._arriving = self.loop.call_later(self._bounds().slow_seconds, self._late)

    def _late(self) -> None:
        self._arriving = None
        if self.pipeline or self.flow.read_paused:  # it is not read, so the client is not to blame
            self._await_request()
        else:
            self._cut("send its request")

    def _cut(self, what: str) -> None:
        log.info(
            "a connection was cut off: its client took more than %g s to %s",
            self._bounds().slow_seconds,
            what,
        )
        self.transport.abort()


def _too_long(limit: int) -> ASGIApp:
    return error_response(
        ApiError(
            431,
            f"the head of the request is longer than {limit} bytes (server.max_header_bytes): send fewer headers",
            code="headers_too_large",
            headers={"Connection": "close"},
        )
    )
