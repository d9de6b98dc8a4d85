"""The router's two listeners: OpenAI's API as the instances have it, and how the router stands."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from specd.config.schema import ServerSection
from specd.http.admin import ADVICE, reconfigured
from specd.http.admin_bodies import ReloadBody
from specd.http.asgi import LimitBodies, application, json_response, on_loop, parsed
from specd.http.errors import ApiError
from specd.http.guard import RefuseForeignPages, RequireKey, apart_from_pages, host_rule
from specd.http.keys import Keys
from specd.reloading import Reloaded
from specd.telemetry.prometheus import CONTENT_TYPE

_MOST_BYTES: Final = 1 << 20


class Shown(Protocol):
    """What the admin listener asks."""

    def metrics(self) -> bytes:
        """In Prometheus' text format."""

    def status(self) -> dict[str, Any]:
        """How everything stands."""

    def reload(self, *, partial: bool) -> Awaitable[Reloaded]:
        """Read the config again; partial: keys that need a restart wait for it. Raises `UserError`."""


def inference_app(
    proxy: ASGIApp, keys: Keys, server: Callable[[], ServerSection], unready: Callable[[], str | None]
) -> ASGIApp:
    """server: the section in force. unready: says why no request would be answered now."""

    def ready(_: Request) -> Response:
        why = unready()
        if why is not None:
            raise ApiError(503, why, code="not_ready")
        return json_response({"status": "ready"})

    app = application(
        [
            Route("/v1/{path:path}", proxy, methods=["GET", "POST"]),
            Route("/health", on_loop(lambda _: json_response({"status": "alive"}))),
            Route("/ready", on_loop(ready)),
        ]
    )
    return RequireKey(apart_from_pages(app, server, keys), keys, "/v1/")


def admin_app(shown: Shown, tokens: Keys, listen: str, server: Callable[[], ServerSection]) -> ASGIApp:
    """As the daemon's: a token is asked for under /admin. server: the section in force."""

    async def reload(request: Request) -> Response:
        wanted = parsed(await request.body() or b"{}", ReloadBody)
        return await reconfigured(shown.reload(partial=wanted.partial))

    app = application(
        [
            Route("/metrics", on_loop(lambda _: Response(shown.metrics(), media_type=CONTENT_TYPE))),
            Route("/admin/v1/status", on_loop(lambda _: json_response(shown.status()))),
            Route("/admin/v1/reload", reload, methods=["POST"]),
        ]
    )
    guarded = RequireKey(LimitBodies(app, _MOST_BYTES), tokens, "/admin")
    return RefuseForeignPages(guarded, host_rule(listen, server), prefix="/", advice=ADVICE)
