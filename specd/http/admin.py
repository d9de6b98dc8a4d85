"""The admin listener: metrics, state, and reload."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from specd.errors import ReloadRefusedError, UserError
from specd.http.asgi import application, json_response
from specd.http.errors import ApiError
from specd.http.guard import Keys, RefuseForeignPages, RequireKey
from specd.reloading import Reloaded
from specd.telemetry.prometheus import CONTENT_TYPE

_DEFAULT_LIMIT: Final = 100


class Daemon(Protocol):
    """What the admin listener asks of the daemon."""

    def metrics(self) -> bytes:
        """In Prometheus' text format."""

    def status(self) -> dict[str, Any]:
        """How everything stands."""

    def config(self) -> dict[str, Any]:
        """The config in force, without secrets."""

    def decisions(self, limit: int, request: str | None) -> list[dict[str, Any]]:
        """The last rounds, newest first; of one request where it is named."""

    def alerts(self) -> list[dict[str, Any]]:
        """Open alerts and those that ended lately."""

    async def reload(self) -> Reloaded:
        """Read the config again. Raises `UserError`."""


@dataclass(frozen=True, slots=True)
class AdminApi:
    """The endpoints."""

    daemon: Daemon

    async def metrics(self, _: Request) -> Response:
        """`GET /metrics`."""
        return Response(self.daemon.metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def status(self, _: Request) -> Response:
        """`GET /admin/v1/status`."""
        return json_response(self.daemon.status())

    async def config(self, _: Request) -> Response:
        """`GET /admin/v1/config`."""
        return json_response(self.daemon.config())

    async def alerts(self, _: Request) -> Response:
        """`GET /admin/v1/alerts`."""
        return json_response({"alerts": self.daemon.alerts()})

    async def decisions(self, request: Request) -> Response:
        """`GET /admin/v1/decisions?limit=N&request=ID`."""
        limit = request.query_params.get("limit", str(_DEFAULT_LIMIT))
        if not limit.isdecimal() or not limit.isascii():
            raise ApiError(400, f"limit must be a whole number, not {limit!r}", param="limit")
        found = self.daemon.decisions(int(limit), request.query_params.get("request"))
        return json_response({"decisions": found})

    async def reload(self, _: Request) -> Response:
        """`POST /admin/v1/reload`."""
        try:
            reloaded = await self.daemon.reload()
        except ReloadRefusedError as refused:
            raise ApiError(409, str(refused), code="restart_needed") from None
        except UserError as fault:
            raise ApiError(422, str(fault), code="invalid_config") from None
        return json_response(reloaded.as_json())


def admin_app(daemon: Daemon, keys: Keys, allowed_host: Callable[[str], bool]) -> ASGIApp:
    """Keys are asked for under /admin; metrics are open to whoever reaches the listener."""
    api = AdminApi(daemon)
    reads: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/metrics": api.metrics,
        "/admin/v1/status": api.status,
        "/admin/v1/config": api.config,
        "/admin/v1/decisions": api.decisions,
        "/admin/v1/alerts": api.alerts,
    }
    routes = [Route(path, endpoint) for path, endpoint in reads.items()]
    app = application([*routes, Route("/admin/v1/reload", api.reload, methods=["POST"])])
    return RefuseForeignPages(RequireKey(app, keys, "/admin"), allowed_host)
