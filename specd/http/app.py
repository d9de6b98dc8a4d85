"""The inference listener."""

import functools
import time
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from specd.http.asgi import JsonPost, application, json_response
from specd.http.bodies import ChatBody, CompletionBody
from specd.http.encode import encode_chat, encode_completion
from specd.http.errors import ApiError
from specd.http.generate import GenerateEndpoint, Service
from specd.http.guard import Keys, RequireKey
from specd.http.openapi import document
from specd.http.shapes import ChatShape, CompletionShape


def inference_app(
    service: Service, keys: Keys, unready: Callable[[], str | None], *, version: str
) -> ASGIApp:
    """`unready` says why no request would be served now, None when it would be."""
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
            _post("/v1/completions", completion, service),
            _post("/v1/chat/completions", chat, service),
            Route("/v1/models", _on_loop(models)),
            Route("/health", _on_loop(lambda _: json_response({"status": "alive"}))),
            Route("/ready", _on_loop(ready)),
            Route("/openapi.json", _on_loop(lambda _: json_response(described()))),
        ]
    )
    return RequireKey(app, keys, "/v1/")


def _post(path: str, endpoint: GenerateEndpoint[Any], service: Service) -> Route:
    body_limit = lambda: service.config().server.max_body_bytes  # noqa: E731
    return Route(path, JsonPost(endpoint.handle, limit=body_limit), methods=["POST"])


def _on_loop(function: Callable[[Request], Response]) -> Callable[[Request], Any]:
    """Starlette runs plain functions in a thread, which costs more than these do."""

    async def endpoint(request: Request) -> Response:
        return function(request)

    return endpoint
