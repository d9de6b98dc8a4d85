"""An engine's server without an engine, in a thread: it answers as it is told to, and notes who asked and who left."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.daemon.in_thread import serving

WORDS = ("one", "two", "three")


@dataclass
class Instance:
    """Its manners, and what became of requests."""

    name: str
    status: int = 200
    """Of every answer."""
    healthy: bool = True
    held: bool = False
    """Streams stop after their first word, until they are released."""
    breaks: bool = False
    """An answer ends in the middle, and the connection with it."""
    asked: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    """Path, headers and body."""
    left: int = 0
    """Clients that did not wait for the end."""
    port: int = 0
    _released: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def behave(self) -> None:
        """Well again, and as if nobody had asked."""
        self.status, self.healthy, self.held, self.breaks, self.left = 200, True, False, False, 0
        self.asked.clear()
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    def app(self) -> Starlette:
        routes = [
            Route("/health", self._health),
            Route("/slots", self._answer),
            Route("/v1/{path:path}", self._answer, methods=["GET", "POST"]),
        ]
        return Starlette(routes=routes)

    async def _health(self, _: Request) -> Response:
        return Response(status_code=200 if self.healthy else 503)

    async def _answer(self, request: Request) -> Response:
        body = await request.body()
        self.asked.append((request.url.path, dict(request.headers), body))
        if self.status != 200:
            return JSONResponse({"error": {"message": f"no, says {self.name}"}}, self.status)
        if body and json.loads(body).get("stream"):
            return StreamingResponse(self._words(), media_type="text/event-stream")
        if self.breaks:
            return StreamingResponse(self._half(), media_type="application/json")
        return JSONResponse({"by": self.name, "path": request.url.path, "query": request.url.query})

    async def _half(self) -> AsyncIterator[bytes]:
        yield b'{"by": '
        raise ConnectionError

    async def _words(self) -> AsyncIterator[bytes]:
        try:
            for number, word in enumerate(WORDS):
                yield f"data: {json.dumps({'word': word, 'by': self.name})}\n\n".encode()
                if self.breaks:
                    raise ConnectionError
                while number == 0 and self.held and not self._released.is_set():  # noqa: ASYNC110 - of another thread
                    await asyncio.sleep(0.005)
            yield b"data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.left += 1
            raise

    @contextmanager
    def running(self) -> Iterator["Instance"]:
        """Serve, on the same port each time, until the block ends."""
        with serving(self.app(), self.port) as self.port:
            yield self
