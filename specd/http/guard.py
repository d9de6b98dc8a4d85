"""Who may come in: bearer keys, and on the admin listener protection from a browser's pages."""

import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from specd.errors import UserError
from specd.http.asgi import error_response
from specd.http.errors import ApiError

_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Keys:
    """Bearer keys out of a file; without a file nobody is asked for one."""

    def __init__(self, file: Path | None, key: str) -> None:
        """`key` is the config's name for the file. Raises `UserError` when it cannot be used."""
        self._file = file
        self._key = key
        self._digests = self.read()

    @property
    def required(self) -> bool:
        """Whether a key is asked for."""
        return self._file is not None

    def read(self) -> tuple[bytes, ...]:
        """What is in the file now; to be put in force by `replace`. Raises `UserError`."""
        if self._file is None:
            return ()
        try:
            lines = self._file.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UserError(
                f"{self._key}: {self._file} cannot be read ({why}): put one key a line there"
            ) from None
        if not lines:
            raise UserError(
                f"{self._key}: {self._file} is empty: put one key a line there, or unset {self._key}"
            )
        return tuple(map(_digest, lines))

    def replace(self, digests: tuple[bytes, ...]) -> None:
        """From now on these count."""
        self._digests = digests

    def accept(self, authorization: str) -> bool:
        """Whether this header opens the door. Takes the same time for every wrong key."""
        if self._file is None:
            return True
        scheme, _, key = authorization.partition(" ")
        offered = _digest(key.strip())
        matches = [hmac.compare_digest(offered, digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class RequireKey:
    """Middleware: 401 for a path under `prefix` without a good key."""

    def __init__(self, app: ASGIApp, keys: Keys, prefix: str) -> None:
        self._app = app
        self._keys = keys
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls it."""
        guarded = scope["type"] == "http" and scope["path"].startswith(self._prefix)
        if guarded and not self._keys.accept(_header(scope, b"authorization")):
            error = ApiError(
                401,
                "a valid key is needed: send it as `Authorization: Bearer …`",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error_response(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class RefuseForeignPages:
    """Middleware: keeps web pages that the operator's browser has open away from a listener on loopback.

    A page whose own name was re-bound to 127.0.0.1 betrays itself by the Host header, a page that simply
    posts here by its Origin.
    """

    def __init__(self, app: ASGIApp, allowed_host: Callable[[str], bool]) -> None:
        self._app = app
        self._allowed_host = allowed_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls it."""
        if scope["type"] == "http" and (why := self._foreign(scope)):
            await error_response(ApiError(403, why, code="foreign_page"))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _foreign(self, scope: Scope) -> str | None:
        host, origin = _header(scope, b"host"), _header(scope, b"origin")
        if not self._allowed_host(_without_port(host)):
            return f"the Host header names {host!r}: ask by the address that admin.listen names"
        if origin and origin.partition("://")[2] != host:
            return f"a page of {origin!r} may not use the admin listener"
        return None


def host_rule(listen: str) -> Callable[[str], bool]:
    """Which Host headers the admin listener takes. Only one on loopback can know its own names."""
    host = _without_port(listen)
    if listen.startswith("unix:") or not is_loopback(host):
        return lambda _: True
    return (_LOCAL | {host}).__contains__


def is_loopback(host: str) -> bool:
    """Whether a listener on this host is for this machine only."""
    return host in _LOCAL or host.startswith("127.")


def exposed(listen: str, token_file: Path | None) -> str | None:
    """Why the admin listener may not be opened like this, if so."""
    if token_file is not None or listen.startswith("unix:") or is_loopback(_without_port(listen)):
        return None
    return (
        f"admin.listen = {listen} is open to other machines: set admin.token_file,"
        " or listen on 127.0.0.1 or a unix: socket"
    )


def _without_port(address: str) -> str:
    host, colon, port = address.rpartition(":")
    return host.lower() if colon and port.isdecimal() else address.lower()


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")
