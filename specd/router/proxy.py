"""A request's way to an instance and back.

   body ──▶ choose ──▶ an instance takes it ──▶ its answer, piece by piece as it comes
               ▲             │ no connection, or 503 before any work
               └── the other ┘

Nothing is sent twice that an instance may have begun: a prompt that ends one engine would end the next one too. A
client that leaves cancels all of it, which closes the connection to the instance.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import httpx2
import msgspec
from starlette.types import Receive, Scope, Send

from specd.config.schema import Config
from specd.errors import clause
from specd.http.asgi import ClientGoneError, read_body, until_disconnect
from specd.http.errors import ApiError
from specd.router.choice import Name
from specd.router.instances import Instance, Instances
from specd.router.traffic import Flight, NotTakenError, Outcome, Traffic
from specd.router.wish import declines_drafts

_UNAVAILABLE: Final = 503
_EVENTS: Final = "text/event-stream"
_EVENT: Final = b"data:"
"""About one for each token."""

_NOT_PASSED_ON: Final = frozenset(
    {
        b"accept-encoding",
        b"authorization",
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Of one connection, or said anew for the next one."""


_NOT_PASSED_BACK: Final = frozenset(
    {
        b"connection",
        b"content-length",
        b"date",
        b"keep-alive",
        b"server",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

Headers = list[tuple[bytes, bytes]]


class _Asked(NamedTuple):
    """A request, and where its answer goes."""

    scope: Scope
    body: bytes
    send: Send
    flight: Flight | None
    """None for what is not a request for text."""


class Proxy:
    """The endpoint, for all there is below /v1."""

    def __init__(
        self, instances: Instances, traffic: Traffic, config: Callable[[], Config], *, keyed: bool
    ) -> None:
        """keyed: the keys that clients send are for the router, and go no further."""
        self._instances = instances
        self._traffic = traffic
        self._config = config
        self._keyed = keyed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls it."""
        if _leads_out(scope["path"]):
            raise ApiError(404, f"there is no {scope['path']} here")
        try:
            body = await read_body(scope, receive, self._config().server.max_body_bytes)
        except ClientGoneError:
            return
        await until_disconnect(receive, self._serve(scope, body, send))

    async def _serve(self, scope: Scope, body: bytes, send: Send) -> None:
        if scope["method"] != "POST":
            await self._ask(self._traffic.any_one(), _Asked(scope, body, send, None))
            return
        with self._traffic.flight(body, self._config()) as flight:
            order = self._traffic.choose(declined=declines_drafts(body))
            await self._ask(order, _Asked(scope, body, send, flight))

    async def _ask(self, order: Iterable[Name], asked: _Asked) -> None:
        """One instance after the other, until one takes it. Raises `ApiError`."""
        refusals: dict[Name, str] = {}
        for name in order:
            try:
                await self._forward(self._instances.all[name], asked)
            except NotTakenError as error:
                refusals[name] = str(error)
            else:
                return
        known = {**self._instances.down, **refusals}
        raise ApiError(
            _UNAVAILABLE,
            f"neither instance serves ({'; '.join(f'{name}: {why}' for name, why in known.items())}):"
            " send the request again later",
            code="no_instance",
            headers={"Retry-After": f"{max(1.0, self._config().router.check_seconds):.0f}"},
        )

    async def _forward(self, instance: Instance, asked: _Asked) -> None:
        """Raises `NotTakenError`, and `ApiError` where it was taken and came to nothing."""
        with self._traffic.outcome(instance.name) as outcome:
            async with self._answer(instance, asked) as answer:
                outcome.status = answer.status_code
                start = {
                    "type": "http.response.start",
                    "status": answer.status_code,
                    "headers": _back(answer, instance.name),
                }
                if answer.headers.get("content-type", "").startswith(_EVENTS):
                    await asked.send(start)
                    await self._stream(answer, asked, outcome)
                    return
                content = await _whole(answer, instance)
            outcome.piece()
            await asked.send(start)
            await asked.send({"type": "http.response.body", "body": content})

    @asynccontextmanager
    async def _answer(self, instance: Instance, asked: _Asked) -> AsyncIterator[httpx2.Response]:
        request = self._instances.http.build_request(
            asked.scope["method"],
            _target(instance, asked.scope),
            headers=self._onward(asked.scope),
            content=asked.body,
            timeout=self._instances.timeouts(),
        )
        try:
            answer = await self._instances.http.send(request, stream=True)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            why = f"no connection, {clause(error)}"
            instance.found(why)
            raise NotTakenError(why) from None
        except httpx2.HTTPError as error:
            raise _nothing_came(instance, error) from None
        try:
            if answer.status_code == _UNAVAILABLE:
                raise NotTakenError(f"it answers {_UNAVAILABLE}")
            yield answer
        finally:
            await answer.aclose()

    async def _stream(self, answer: httpx2.Response, asked: _Asked, outcome: Outcome) -> None:
        """Piece by piece. A stream that breaks ends in an event that says so."""
        end = b""
        try:
            async for piece in answer.aiter_raw():
                outcome.piece()
                if asked.flight is not None:
                    asked.flight.grew(piece.count(_EVENT))
                await asked.send({"type": "http.response.body", "body": piece, "more_body": True})
        except httpx2.HTTPError as error:
            outcome.broke_off = True
            end = b"\n\ndata: %b\n\n" % msgspec.json.encode(_broke_off(error).body())
        await asked.send({"type": "http.response.body", "body": end, "more_body": False})

    def _onward(self, scope: Scope) -> Headers:
        """The client's headers, but for what is between it and the router."""
        headers = [(name, value) for name, value in scope["headers"] if name not in _NOT_PASSED_ON]
        headers.append((b"accept-encoding", b"identity"))  # an event can be added only to what can be read
        if self._instances.key is not None:
            headers.append((b"authorization", f"Bearer {self._instances.key}".encode()))
        elif not self._keyed:
            headers += [(name, value) for name, value in scope["headers"] if name == b"authorization"]
        return headers


def _target(instance: Instance, scope: Scope) -> str:
    """The same path and query there."""
    path = scope["raw_path"].decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    return f"{instance.url}{path}{'?' if query else ''}{query}"


def _leads_out(path: str) -> bool:
    """Whether it would be another path once it is written plainly: only what lies below /v1 is passed on."""
    return not {".", ".."}.isdisjoint(path.split("/"))


def _back(answer: httpx2.Response, name: Name) -> Headers:
    passed = [
        (key.lower(), value) for key, value in answer.headers.raw if key.lower() not in _NOT_PASSED_BACK
    ]
    return [*passed, (b"x-specd-instance", name.encode())]


async def _whole(answer: httpx2.Response, instance: Instance) -> bytes:
    """What is no stream is passed on once it is complete, so that whatever happens to it can be answered."""
    try:
        return b"".join([piece async for piece in answer.aiter_raw()])
    except httpx2.HTTPError as error:
        raise _nothing_came(instance, error) from None


def _nothing_came(instance: Instance, error: httpx2.HTTPError) -> ApiError:
    if isinstance(error, httpx2.TimeoutException):
        return ApiError(
            504,
            f"the {instance.name} instance said nothing for router.silence_seconds: ask for less, or raise that",
            code="instance_silent",
        )
    return ApiError(
        502,
        f"the {instance.name} instance broke off before it had answered ({clause(error)}): send the request again",
        code="instance_lost",
    )


def _broke_off(error: httpx2.HTTPError) -> ApiError:
    silent = isinstance(error, httpx2.TimeoutException)
    why = "it said nothing more for router.silence_seconds" if silent else clause(error)
    return ApiError(502, f"the instance broke off in the middle of its answer ({why})", code="instance_lost")
