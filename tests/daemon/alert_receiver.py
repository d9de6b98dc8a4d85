"""A webhook receiver on a real socket that answers by a script."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from standardwebhooks import Webhook


@dataclass(frozen=True)
class Answer:
    """Status 0 never answers."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    def verified(self, secret: str) -> dict:
        """The message, once the package of the Standard Webhooks project accepts its signature."""
        return Webhook(secret).verify(self.body, self.headers)


class AlertReceiver:
    """Takes POSTs; answers with what `answers` holds, then with 200."""

    def __init__(self) -> None:
        self.answers: deque[Answer] = deque()
        self.received: list[Received] = []
        self.url = ""
        self._closing = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer, and the connection is closed."""
        try:
            await self._serve(reader, writer)
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)
        }
        body = await reader.readexactly(int(headers["content-length"]))
        self.received.append(Received(head[0].split()[1], headers, body))
        answer = self.answers.popleft() if self.answers else Answer(200)
        if answer.status == 0:
            await self._closing.wait()
            return
        lines = [f"HTTP/1.1 {answer.status} X", "content-length: 0", "connection: close"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        writer.write("".join(f"{line}\r\n" for line in [*lines, ""]).encode())
        await writer.drain()

    def close(self) -> None:
        """Let go of those that were never answered."""
        self._closing.set()


@asynccontextmanager
async def alert_receiver() -> AsyncIterator[AlertReceiver]:
    """A receiver that listens on a free port of the loopback."""
    receiver = AlertReceiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    receiver.url = f"http://127.0.0.1:{port}/hook"
    async with server:
        yield receiver
        receiver.close()
