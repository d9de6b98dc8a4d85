"""Sockets that are bound before anything slow begins, and servers that leave the signals alone."""

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, cast

import uvicorn
from starlette.types import ASGIApp

from specd.errors import AddressError, UserError
from specd.http.connection import Bounds, Connection

_BACKLOG: Final = 1024
_UNIX: Final = "unix:"
_LAST_WORDS: Final = 2
_PASSING: Final = {errno.EADDRINUSE, errno.EADDRNOTAVAIL}


class Listener:
    """A bound socket and what to call it."""

    def __init__(self, key: str, listen: str) -> None:
        """`key` is the config key that `listen` comes from. Raises `UserError` when it cannot be bound."""
        self.path = Path(listen.removeprefix(_UNIX)) if listen.startswith(_UNIX) else None
        try:
            self.socket = _bind(listen) if self.path is None else _bind_unix(self.path)
        except OSError as error:
            text = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            kind = AddressError if error.errno in _PASSING else UserError
            raise kind(
                f"{key}: cannot listen on {listen} ({text}): free it or choose another address"
            ) from None

    @property
    def url(self) -> str:
        """As a client would write it; a free port that was asked for is known here."""
        if self.path is not None:
            return f"{_UNIX}{self.path}"
        host, port = self.socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def close(self) -> None:
        """Take the socket away, and its file."""
        self.socket.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _bind(listen: str) -> socket.socket:
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"{listen} is no address: write host:port, like 127.0.0.1:8000 or [::1]:8000")
    try:
        family, *_, address = socket.getaddrinfo(
            host.strip("[]") or None, int(port), type=socket.SOCK_STREAM
        )[0]
    except socket.gaierror as error:
        raise AddressError(f"{listen}: the host is not known ({error.strerror})") from None
    return socket.create_server(address[:2], family=family, backlog=_BACKLOG)


def _bind_unix(path: Path) -> socket.socket:
    """Access is by the permissions of the socket and its directory: owner and group."""
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        path.chmod(0o660)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _remove_stale(path: Path) -> None:
    """A socket file that nobody listens on was left by a daemon that was killed."""
    if not path.exists() or not stat.S_ISSOCK(path.stat().st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()


class Server(uvicorn.Server):
    """Serves one app; whoever owns the process handles the signals and sets `should_exit`."""

    def __init__(self, app: ASGIApp, bounds: Callable[[], Bounds] = Bounds) -> None:
        """bounds: what each client may take, asked for anew each time."""
        config = uvicorn.Config(
            app,
            http=cast(
                "type[asyncio.Protocol]", partial(Connection, bounds=bounds)
            ),  # all that is asked of it
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_LAST_WORDS,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield
