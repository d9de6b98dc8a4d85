"""Between vLLM's scheduler and whoever looks after it: a Unix socket, with frames as `engine.wire` makes them.

vLLM chooses the process in which its scheduler runs, so nobody can hand it an open socket. It is told a path instead
and connects: by the environment (`SOCKET_VARIABLE`), or by vLLM's `additional_config` (`SOCKET_KEY`), which changes the
name under which vLLM keeps what it has compiled.

scheduler to listener: Ready at first, then a StepReport a step, without outputs. Listener to scheduler: Configure.
"""

import asyncio
import contextlib
import logging
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import msgspec

from engine.api import Configure, FromEngine, Ready, StepReport, ToEngine
from engine.wire import WireError, frame, read_from_engine, read_to_engine

SOCKET_VARIABLE: Final = "SPECD_VLLM_SOCKET"
SOCKET_KEY: Final = "specd_socket"

_MOST_UNSENT: Final = 4 << 20  # bytes
_AGAIN_SECONDS: Final = 1.0  # between two tries to connect
_FRAME_SECONDS: Final = 1.0  # in which a frame that has begun must be there
_log = logging.getLogger(__name__)


class Link:
    """The scheduler's end. No step ever waits for it: reports that nobody reads are dropped, and a peer that has gone
    is looked for again.
    """

    def __init__(self, path: str, hello: Ready, clock: Callable[[], float] = time.monotonic) -> None:
        """hello: said first on every connection. An empty path is a link to nobody."""
        self._path = path
        self._hello = hello
        self._clock = clock
        self._sock: socket.socket | None = None
        self._unsent = bytearray()
        self._next_try = 0.0
        self.lost = 0
        """Reports that could not be sent."""
        self._reach()

    @property
    def is_connected(self) -> bool:
        """Whether somebody listens, as far as is known."""
        return self._sock is not None

    @property
    def is_wanted(self) -> bool:
        """Whether a report would be sent, or at least counted as lost."""
        return bool(self._path)

    def send(self, report: StepReport) -> None:
        """Send it, now or with the next one."""
        if self._sock is None and not self._reach():
            self.lost += 1
            return
        if len(self._unsent) > _MOST_UNSENT:
            self.lost += 1
        else:
            self._unsent += frame(report)
        self._flush()

    def received(self) -> list[ToEngine]:
        """What has come since it was last asked."""
        found: list[ToEngine] = []
        while self._sock is not None and select.select([self._sock], [], [], 0)[0]:
            message = self._read(self._sock)
            if message is not None:
                found.append(message)
        return found

    def close(self) -> None:
        """Say no more."""
        if self._sock is not None:
            self._sock.close()
        self._sock = None
        self._path = ""

    def _reach(self) -> bool:
        """Try to connect, if it is time to. On a Unix socket that is done at once or not at all."""
        if not self._path or self._clock() < self._next_try:
            return False
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(_FRAME_SECONDS)
        try:
            sock.connect(self._path)
        except OSError as fault:
            sock.close()
            if not self._next_try:
                _log.warning("nobody listens at %s (%s); the policy goes on by itself", self._path, fault)
            self._next_try = self._clock() + _AGAIN_SECONDS
            return False
        self._sock, self._unsent = sock, bytearray(frame(self._hello))
        self._flush()
        return self._sock is not None

    def _flush(self) -> None:
        while self._sock is not None and self._unsent:
            try:
                sent = self._sock.send(self._unsent, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as fault:
                self._drop(fault)
                return
            del self._unsent[:sent]

    def _read(self, sock: socket.socket) -> ToEngine | None:
        try:
            message = read_to_engine(sock)
        except (OSError, WireError, msgspec.DecodeError) as fault:
            self._drop(fault)
            return None
        if message is None:
            self._drop("it was closed")
        return message

    def _drop(self, why: object) -> None:
        _log.warning("the listener at %s has gone: %s; the policy goes on by itself", self._path, why)
        if self._sock is not None:
            self._sock.close()
        self._sock = None
        self._unsent.clear()
        self._next_try = self._clock() + _AGAIN_SECONDS


class Listener:
    """The other end: hears schedulers, and tells each what it is to do. vLLM has one for each data-parallel rank."""

    def __init__(
        self, path: Path, heard: Callable[[FromEngine], None], left: Callable[[], None] = lambda: None
    ) -> None:
        """heard: told of every message. left: told when a scheduler has gone."""
        self.path = path
        self._heard = heard
        self._left = left
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._orders: Configure | None = None

    @property
    def connected(self) -> int:
        """Schedulers that are there."""
        return len(self._writers)

    async def __aenter__(self) -> Self:
        """Listen. Only the user of this process may connect, and root. Raises OSError. A socket that was left there is
        replaced, and no other file.
        """
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        self.path.chmod(0o600)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        self.path.unlink(missing_ok=True)

    def configure(self, orders: Configure) -> None:
        """From the next step on, and for all who come later."""
        self._orders = orders
        for writer in self._writers:
            writer.write(frame(orders))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        if self._orders is not None:
            writer.write(frame(self._orders))
        try:
            while True:
                self._heard(await read_from_engine(reader))
        except (asyncio.IncompleteReadError, ConnectionError):
            _log.debug("a scheduler has gone")
        except (WireError, msgspec.DecodeError):
            _log.exception("what a scheduler sent is not a frame of ours; it is heard no more")
        finally:
            self._writers.discard(writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self._left()
