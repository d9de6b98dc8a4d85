"""Spans at the inference listener: begun and ended here, known better by whoever answers."""

from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specd.telemetry.tracing import NO_SPAN, Span, Tracing

_KEY = "specd.span"


def span_of(scope: Scope) -> Span:
    """Of the request with this scope; one that records nothing where it is not traced."""
    span: Span = scope.get(_KEY, NO_SPAN)
    return span


class Traced:
    """Middleware: a span for each request to these paths, whose `traceparent` goes out with the answer."""

    def __init__(self, app: ASGIApp, tracing: Tracing, paths: Collection[str]) -> None:
        self._app = app
        self._tracing = tracing
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls it."""
        if scope["type"] != "http" or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        with self._tracing.span(scope["method"], scope["path"], headers) as span:

            async def sent(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.answered(message["status"])
                    message = _with_header(message, span.traceparent)
                await send(message)

            await self._app({**scope, _KEY: span}, receive, sent)


def _with_header(message: Message, traceparent: str) -> Message:
    if not traceparent:
        return message
    return {**message, "headers": [*message.get("headers", ()), (b"traceparent", traceparent.encode())]}
