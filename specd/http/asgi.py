"""What endpoints need and no framework gives: bounded bodies, sight of a leaving client, one envelope."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specd.flights import UnservedError
from specd.http.errors import ApiError, from_refusal

log = logging.getLogger(__name__)

_DRAIN_AT_MOST: Final = 64 << 20
_encode = msgspec.json.Encoder().encode


class ClientGoneError(Exception):
    """The client left before its request was complete: there is nobody to answer."""


def json_response(body: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response with this body as JSON."""
    return Response(_encode(body), status, headers, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """The error in its envelope."""
    return json_response(error.body(), status=error.status, headers=error.headers)


def application(routes: Sequence[BaseRoute]) -> Starlette:
    """An app in which every error, the framework's own included, has OpenAI's envelope."""
    app = Starlette(
        routes=routes,
        exception_handlers={  # coroutines, since Starlette runs plain functions in a thread
            ApiError: _api_error,
            UnservedError: _unserved,
            HTTPException: _framework_error,
            Exception: _fault,
        },
    )
    app.router.redirect_slashes = False
    return app


async def _api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _unserved(_: Request, error: Exception) -> Response:
    assert isinstance(error, UnservedError)
    return error_response(from_refusal(error.refusal))


async def _framework_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {
        404: f"there is no {request.url.path} here",
        405: f"{request.url.path} does not take {request.method}",
    }.get(error.status_code, error.detail)
    headers = dict(error.headers or {})
    if "Allow" in headers:  # the framework knows of one route at a time, and a path may have several
        headers["Allow"] = ", ".join(sorted(_methods(request.app.routes, request.url.path)))
    return error_response(ApiError(error.status_code, message, headers=headers))


def _methods(routes: Sequence[BaseRoute], path: str) -> set[str]:
    there = (route for route in routes if isinstance(route, Route) and route.path_regex.match(path))
    return {method for route in there for method in route.methods or ()}


async def _fault(_: Request, error: Exception) -> Response:
    return error_response(fault(error))


def fault(error: BaseException) -> ApiError:
    """A mistake of ours, for the client; the log has the rest."""
    return ApiError(500, f"the server failed on this request ({type(error).__name__})", code="internal_error")


Body = TypeVar("Body")


def parsed(raw: bytes, kind: type[Body]) -> Body:
    """A body of the admin listener. Raises `ApiError` 400."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, RecursionError) as fault:
        raise ApiError(400, f"the body cannot be used: {fault}", code="invalid_body") from None


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body. Raises `ApiError` 413 beyond `limit` bytes, `ClientGoneError` when it does not come."""
    declared = dict(scope["headers"]).get(b"content-length", b"0")
    too_large = declared.isdigit() and int(declared) > limit
    parts: list[bytes] = []
    size = 0
    async with contextlib.aclosing(_body_parts(receive)) as body:
        async for part in body:
            size += len(part)
            too_large = too_large or size > limit
            if not too_large:
                parts.append(part)
            elif size > _DRAIN_AT_MOST:
                break
    if too_large:
        # Read to its end first: a client that is still sending would see a reset instead of the answer.
        raise _too_large(limit, "server.max_body_bytes")
    return b"".join(parts)


def _too_large(limit: int, why: str) -> ApiError:
    return ApiError(
        413,
        f"the body is larger than {limit} bytes ({why}): send a smaller one",
        code="body_too_large",
        headers={"Connection": "close"},
    )


async def _body_parts(receive: Receive) -> Any:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, and cancel it when the client goes away. To be called when the body has been read."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.wait({working, leaving})
    if not working.cancelled():
        working.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def on_loop(function: Callable[[Request], Response]) -> Callable[[Request], Any]:
    """Starlette runs plain functions in a thread, which costs more than these do."""

    async def endpoint(request: Request) -> Response:
        return function(request)

    return endpoint


class LimitBodies:
    """Middleware: a body that is read beyond `limit` bytes ends in 413."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls it."""
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size <= self._limit:
                return message
            while message.get("more_body") and size < _DRAIN_AT_MOST:  # as in read_body
                message = await receive()
                size += len(message.get("body", b""))
            raise _too_large(self._limit, "this listener takes no more")

        await self._app(scope, counted, send)


class JsonPost:
    """An endpoint that takes a body and answers through `send`; it is cancelled when the client leaves."""

    def __init__(
        self, handle: Callable[[bytes, Send, Scope], Coroutine[Any, Any, None]], *, limit: Callable[[], int]
    ) -> None:
        self._handle = handle
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls it."""
        try:
            body = await read_body(scope, receive, self._limit())
        except ClientGoneError:
            return
        await until_disconnect(receive, self._handle(body, send, scope))
