"""The admin listener's part of crash reports."""

from collections.abc import Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specd.errors import UserError
from specd.http.asgi import json_response
from specd.http.errors import ApiError


class Crashes(Protocol):
    """What the admin listener asks of them."""

    async def list(self) -> list[dict[str, Any]]:
        """Summaries, the newest first."""

    async def show(self, name: str) -> dict[str, Any]:
        """A report. Raises `UserError`."""


def crash_routes(crashes: Crashes) -> Sequence[Route]:
    """`GET /admin/v1/crashes`, and one of them by its id."""

    async def listed(_: Request) -> Response:
        return json_response({"crashes": await crashes.list()})

    async def shown(request: Request) -> Response:
        try:
            return json_response(await crashes.show(request.path_params["id"]))
        except UserError as fault:
            raise ApiError(404, str(fault), code="not_found") from None

    return [Route("/admin/v1/crashes", listed), Route("/admin/v1/crashes/{id}", shown)]
