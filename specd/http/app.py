"""The inference listener."""

import functools
import time
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from specd.http.asgi import JsonPost, application, json_response
from specd.http.bodies import ChatBody, CompletionBody
from specd.http.encode import encode_chat, encode_completion
from specd.http.errors import ApiError
from specd.http.generate import GenerateEndpoint, Service
from specd.http.guard import RefuseForeignPages, RequireKey, host_rule, is_local
from specd.http.keys import Keys
from specd.http.openapi import document
from specd.http.shapes import ChatShape, CompletionShape
from specd.http.traced import Traced
from specd.telemetry.tracing import Tracing

_CHAT: Final = "/v1/chat/completions"
_COMPLETIONS: Final = "/v1/completions"

_ADVICE: Final = "ask for 127.0.0.1, or list the name in server.allowed_hosts"


def inference_app(
    service: Service,
    keys: Keys,
    unready: Callable[[], str | None],
    *,
    version: str,
    tracing: Tracing | None = None,
) -> ASGIApp:
    """unready: says why no request would be served now, None when it would be. tracing: None for none."""
    created = int(time.time())

    def models(_: Request) -> Response:
        model = {"id": service.name, "object": "model", "created": created, "owned_by": "specd"}
        return json_response({"object": "list", "data": [model]})

    def ready(_: Request) -> Response:
        why = unready()
        if why is not None:
            raise ApiError(503, why, code="not_ready")
        return json_response({"status": "ready"})

    @functools.cache
    def described() -> dict[str, Any]:
        return document(version)

    completion = GenerateEndpoint(service, CompletionBody, encode_completion, CompletionShape())
    chat = GenerateEndpoint(service, ChatBody, encode_chat, ChatShape())
    app = application(
        [
            _post(_COMPLETIONS, completion, service),
            _post(_CHAT, chat, service),
            Route("/v1/models", _on_loop(models)),
            Route("/health", _on_loop(lambda _: json_response({"status": "alive"}))),
            Route("/ready", _on_loop(ready)),
            Route("/openapi.json", _on_loop(lambda _: json_response(described()))),
        ]
    )
    guarded = RequireKey(_apart_from_pages(app, service, keys), keys, "/v1/")
    return guarded if tracing is None else Traced(guarded, tracing, {_CHAT, _COMPLETIONS})


def _apart_from_pages(app: ASGIApp, service: Service, keys: Keys) -> ASGIApp:
    """What a page cannot do where keys are asked for, since it has none."""
    server = service.config().server
    if keys.required or not is_local(server.listen):
        return app
    at_home = host_rule(server.listen)
    allowed = lambda host: at_home(host) or host in service.config().server.allowed_hosts  # noqa: E731
    return RefuseForeignPages(app, allowed, prefix="/v1/", advice=_ADVICE)


def _post(path: str, endpoint: GenerateEndpoint[Any], service: Service) -> Route:
    body_limit = lambda: service.config().server.max_body_bytes  # noqa: E731
    return Route(path, JsonPost(endpoint.handle, limit=body_limit), methods=["POST"])


def _on_loop(function: Callable[[Request], Response]) -> Callable[[Request], Any]:
    """Starlette runs plain functions in a thread, which costs more than these do."""

    async def endpoint(request: Request) -> Response:
        return function(request)

    return endpoint
