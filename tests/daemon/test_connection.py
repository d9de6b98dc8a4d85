"""What a client may make a connection hold, against a real server."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator

import pytest

from specd.http.asgi import json_response
from specd.http.connection import Bounds
from specd.http.listen import Server
from tests.daemon.conftest import until

BOUNDS = Bounds(head_bytes=2000, slow_seconds=0.3)
PATIENT = Bounds(head_bytes=2000, slow_seconds=30)


class App:
    """Answers with a stream without end, or at once; notes how its streams ended."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.sent = 0

    async def __call__(self, scope, receive, send) -> None:
        if scope["path"] != "/stream":
            await json_response({"path": scope["path"]})(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.create_task(self.gone(receive))
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 10_000, "more_body": True})
            self.sent += 10_000
        self.cancelled += 1

    async def gone(self, receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


@contextlib.asynccontextmanager
async def served(bounds: Bounds) -> AsyncIterator[tuple[App, int]]:
    app = App()
    server = Server(app, lambda: bounds)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        try:
            yield app, listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


async def said(port: int, *parts: bytes) -> bytes:
    """All that is answered to these, sent one after another, until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.02)
    answer = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(10):
            answer = await reader.read()
    writer.close()
    return answer


GET = b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"


async def test_a_head_that_is_too_long_is_refused():
    """Test that headers beyond the limit get 431 with a sentence, and that more of them are not even collected."""
    async with served(PATIENT) as (_, port):
        assert (await said(port, GET + b"A: " + b"a" * 1500 + b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        whole = await said(port, GET + b"A: " + b"a" * 2000 + b"\r\n\r\n")
        assert whole.startswith(b"HTTP/1.1 431")
        body = json.loads(whole.partition(b"\r\n\r\n")[2])
        assert "longer than 2000 bytes (server.max_header_bytes)" in body["error"]["message"]
        endless = await said(port, GET, *[b"a" * 800] * 5)
        # What is sent after the refusal may reset the connection before it is read.
        assert not endless or (endless.startswith(b"HTTP/1.1 400") and b"longer than 2000 bytes" in endless)


@pytest.mark.parametrize(
    "parts", [(), (b"GET /a HTTP/1.1\r\nHo",), (b"POST /a HTTP/1.1\r\nContent-Length: 9\r\n\r\nab",)]
)
async def test_a_request_that_never_comes_is_not_waited_for(parts):
    """Test that a connection is cut off on which nothing, half a head, or half a body comes."""
    async with served(BOUNDS) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.writelines(parts)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(10):
                await reader.read()
        writer.close()


async def test_a_client_that_does_not_read_is_cut_off():
    """Test that a stream stops when the client's buffer is full, and is cancelled when it stays so."""
    async with served(BOUNDS) as (app, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
        writer.write(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: app.cancelled == 1)
        assert app.sent < 50_000_000
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1 << 30)
        writer.close()


async def test_a_client_that_reads_slowly_but_steadily_is_served():
    """Test that what counts is the time without progress, not that of the answer."""
    async with served(BOUNDS._replace(slow_seconds=1.0)) as (app, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
        writer.write(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        read = 0
        loop = asyncio.get_running_loop()
        end = loop.time() + 1.5
        while loop.time() < end:
            read += len(await reader.read(2_000_000))
        assert app.cancelled == 0
        assert read > 0
        writer.close()


async def test_a_connection_serves_one_request_after_another():
    """Test that the limits hold for each request by itself."""
    async with served(BOUNDS) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(5):
            head = f"GET /{number} HTTP/1.1\r\nHost: x\r\nA: {'a' * 900}\r\n\r\n"
            writer.write(head.encode())
            assert b"200" in await reader.readuntil(b"\r\n\r\n")
            assert f'"/{number}"'.encode() in await reader.readuntil(b"}")
        writer.close()
