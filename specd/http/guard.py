"""Who may come in: bearer keys, and where there are none, protection from a browser's pages."""

import ipaddress
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from specd.config.schema import Config, ServerSection
from specd.http.asgi import error_response
from specd.http.errors import ApiError
from specd.http.keys import ANYBODY, Caller, Keys

_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_CALLER: Final = "specd.caller"
_AS_LOCAL: Final = "ask for 127.0.0.1, or list the name in server.allowed_hosts"


class RequireKey:
    """Middleware: 401 for a path under `prefix` without a good key. Whoever comes in is known by `caller_of`."""

    def __init__(self, app: ASGIApp, keys: Keys, prefix: str) -> None:
        self._app = app
        self._keys = keys
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls it."""
        if scope["type"] == "http" and scope["path"].startswith(self._prefix):
            caller = self._keys.caller(_header(scope, b"authorization"))
            if caller is None:
                await error_response(_unknown())(scope, receive, send)
                return
            scope[_CALLER] = caller
        await self._app(scope, receive, send)


def caller_of(scope: Scope) -> Caller:
    """Who sent this request."""
    caller: Caller = scope.get(_CALLER, ANYBODY)
    return caller


def _unknown() -> ApiError:
    return ApiError(
        401,
        "a valid key is needed: send it as `Authorization: Bearer …`",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


class RefuseForeignPages:
    """Middleware: keeps web pages that somebody's browser has open away from a listener on loopback.

    A page whose own name was re-bound to 127.0.0.1 betrays itself by the Host header, a page that simply
    posts here by its Origin.
    """

    def __init__(
        self, app: ASGIApp, allowed_host: Callable[[str], bool], *, prefix: str, advice: str
    ) -> None:
        """`advice`: how to ask instead."""
        self._app = app
        self._allowed_host = allowed_host
        self._prefix = prefix
        self._advice = advice

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls it."""
        guarded = scope["type"] == "http" and scope["path"].startswith(self._prefix)
        if guarded and (why := self._foreign(scope)):
            await error_response(ApiError(403, why, code="foreign_page"))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _foreign(self, scope: Scope) -> str | None:
        host, origin = _header(scope, b"host"), _header(scope, b"origin")
        if not self._allowed_host(_without_port(host)):
            return f"the Host header names {host!r}: {self._advice}"
        if origin and origin.partition("://")[2] != host:
            return f"a page of {origin!r} may not use this listener"
        return None


def apart_from_pages(app: ASGIApp, server: Callable[[], ServerSection], keys: Keys) -> ASGIApp:
    """The inference listener without what a page could ask of it. server: the section in force.

    Where keys are asked for a page has none.
    """
    listen = server().listen
    if keys.required or not is_local(listen):
        return app
    return RefuseForeignPages(app, host_rule(listen, server), prefix="/v1/", advice=_AS_LOCAL)


def host_rule(listen: str, server: Callable[[], ServerSection]) -> Callable[[str], bool]:
    """Which Host headers a listener takes. Only one on loopback can know its own names; server: the section in force,
    which lists more.
    """
    if listen.startswith("unix:") or not is_local(listen):
        return lambda _: True
    at_home = _LOCAL | {_without_port(listen)}
    return lambda host: host in at_home or host in server().allowed_hosts


def is_loopback(host: str) -> bool:
    """Whether a listener on this host is for this machine only."""
    if host in _LOCAL:
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def is_local(listen: str) -> bool:
    """Whether only this machine can reach what listens there."""
    return listen.startswith("unix:") or is_loopback(_without_port(listen))


def exposed(config: Config) -> Iterator[str]:
    """Why listeners may not be opened like this."""
    yield from _open_to_all("admin.listen", config.admin.listen, "admin.token_file", config.admin.token_file)
    yield from _open_to_all(
        "server.listen", config.server.listen, "server.api_keys_file", config.server.api_keys_file
    )


def _open_to_all(setting: str, listen: str, file_setting: str, file: Path | None) -> Iterator[str]:
    if file is None and not is_local(listen):
        yield (
            f"{setting} = {listen} is open to other machines: set {file_setting},"
            " or listen on 127.0.0.1 or a unix: socket"
        )


def _without_port(address: str) -> str:
    host, colon, port = address.rpartition(":")
    return host.lower() if colon and port.isdecimal() else address.lower()


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")
