"""The listeners of the daemon: who may come in by them, and what each client may take."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.types import ASGIApp

from specd.admission.turnstile import Turnstile
from specd.config.schema import Config
from specd.http.connection import Bounds
from specd.http.keys import Keys
from specd.http.listen import Listener, Server
from specd.telemetry.refusals import Refusals

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Doors:
    """Both, with their keys."""

    def __init__(self, first: Config, config: Callable[[], Config], spawn: Spawn) -> None:
        """`config`: the one in force, `first` at the start. Raises `UserError` when a file of keys cannot be used."""
        self.keys = Keys(first.server.api_keys_file, "server.api_keys_file")
        self.tokens = Keys(first.admin.token_file, "admin.token_file")
        self.turnstile = Turnstile(lambda: config().server.limits, time.monotonic)
        self.unserved = Refusals()
        self._config = config
        self._spawn = spawn
        self._servers: list[tuple[Server, asyncio.Task[None]]] = []

    def open(self, listener: Listener, app: ASGIApp) -> None:
        """Serve what comes there."""
        server = Server(app, self._bounds)
        self._servers.append((server, self._spawn(server.serve(sockets=[listener.socket]))))

    def follow_keys(self) -> None:
        """Put what the files hold in force whenever they change."""
        for keys in (self.keys, self.tokens):
            self._spawn(keys.follow())

    def read_keys(self) -> Callable[[], None]:
        """Read the files again; what is returned puts them in force. Raises `UserError`."""
        keys, tokens = self.keys.read(), self.tokens.read()

        def replace() -> None:
            self.keys.replace(keys)
            self.tokens.replace(tokens)

        return replace

    async def aclose(self) -> None:
        """Answer what is inside, and close."""
        for server, _ in self._servers:
            server.should_exit = True
        await asyncio.gather(*(task for _, task in self._servers), return_exceptions=True)

    def _bounds(self) -> Bounds:
        server = self._config().server
        return Bounds(server.max_header_bytes, server.slow_client_seconds)
