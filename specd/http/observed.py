"""The admin listener's part of engines that are observed."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specd.errors import UserError
from specd.http.asgi import json_response
from specd.http.errors import ApiError


class Observed(Protocol):
    """What the admin listener asks of them."""

    def snapshot(self) -> list[dict[str, Any]]:
        """Each, with all that is known of it."""

    def accept(self, name: str) -> dict[str, Any]:
        """What answers there now is meant to. Raises `UserError`."""

    def ask(self, name: str) -> dict[str, Any]:
        """Replay the canary there. Raises `UserError`."""


def observed_routes(observed: Observed) -> Sequence[Route]:
    """`GET /admin/v1/observed`, and what can be done about one of them."""

    async def listed(_: Request) -> Response:
        return json_response({"observed": observed.snapshot()})

    async def accept(request: Request) -> Response:
        return _done(observed.accept, request)

    async def ask(request: Request) -> Response:
        return _done(observed.ask, request)

    path = "/admin/v1/observed"
    return [
        Route(path, listed),
        Route(f"{path}/{{name}}/accept", accept, methods=["POST"]),
        Route(f"{path}/{{name}}/canary", ask, methods=["POST"]),
    ]


def _done(act: Callable[[str], dict[str, Any]], request: Request) -> Response:
    try:
        found = act(request.path_params["name"])
    except UserError as fault:
        raise ApiError(422, str(fault), code="not_observed") from None
    return json_response({"result": "ok", "observed": found})
