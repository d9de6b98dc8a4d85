"""The inference listener."""

import functools
import time
from collections.abc import Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from specd.http.asgi import JsonPost, application, json_response, on_loop
from specd.http.bodies import ChatBody, CompletionBody
from specd.http.encode import encode_chat, encode_completion
from specd.http.errors import ApiError
from specd.http.generate import GenerateEndpoint, Service
from specd.http.guard import RequireKey, apart_from_pages
from specd.http.keys import Keys
from specd.http.openapi import document
from specd.http.shapes import ChatShape, CompletionShape
from specd.http.traced import Traced
from specd.telemetry.tracing import Tracing

_CHAT: Final = "/v1/chat/completions"
_COMPLETIONS: Final = "/v1/completions"


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
            Route("/v1/models", on_loop(models)),
            Route("/health", on_loop(lambda _: json_response({"status": "alive"}))),
            Route("/ready", on_loop(ready)),
            Route("/openapi.json", on_loop(lambda _: json_response(described()))),
        ]
    )
    guarded = RequireKey(apart_from_pages(app, lambda: service.config().server, keys), keys, "/v1/")
    return guarded if tracing is None else Traced(guarded, tracing, {_CHAT, _COMPLETIONS})


def _post(path: str, endpoint: GenerateEndpoint[Any], service: Service) -> Route:
    body_limit = lambda: service.config().server.max_body_bytes  # noqa: E731
    return Route(path, JsonPost(endpoint.handle, limit=body_limit), methods=["POST"])
