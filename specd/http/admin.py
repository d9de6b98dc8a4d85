"""The admin listener: metrics, state, reload, the target, and the dashboard."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from policies.drift import Stratum
from specd.errors import ReloadRefusedError, UpdateBusyError, UpdateError, UserError
from specd.http.admin_bodies import DraftBody, DriftBody, ReloadBody, TargetBody
from specd.http.alerts import Alarm, AlertsApi
from specd.http.asgi import LimitBodies, application, json_response, parsed
from specd.http.errors import ApiError
from specd.http.guard import RefuseForeignPages, RequireKey
from specd.http.keys import Keys
from specd.http.openapi_admin import admin_document
from specd.reloading import Reloaded
from specd.target.outcome import Outcome
from specd.telemetry.prometheus import CONTENT_TYPE

_DEFAULT_LIMIT: Final = 100
_LIMIT_DIGITS: Final = 9
_MOST_BYTES: Final = 1 << 20
ADVICE: Final = "ask by the address that admin.listen names, or list the name in server.allowed_hosts"
"""To whoever asks under another name."""


class Daemon(Protocol):
    """What the admin listener asks of the daemon."""

    @property
    def version(self) -> str:
        """Of the program."""

    def metrics(self) -> bytes:
        """In Prometheus' text format."""

    def status(self) -> dict[str, Any]:
        """How everything stands."""

    def config(self) -> dict[str, Any]:
        """The config in force, without secrets."""

    def decisions(self, limit: int, request: str | None) -> list[dict[str, Any]]:
        """The last rounds, newest first; of one request where it is named."""

    async def reload(self, *, partial: bool) -> Reloaded:
        """Read the config again; partial: keys that need a restart wait for it. Raises `UserError`."""

    async def set(self, values: Mapping[str, Any]) -> Reloaded:
        """Set keys until the next reload, by dotted name. Raises `UserError`."""

    async def accept_drift(self, wanted: Callable[[Stratum], bool]) -> list[Stratum]:
        """What acceptance is now is meant to be so. Raises `UserError`."""

    def target(self) -> dict[str, Any]:
        """What serves, what a rollback would serve, and how the last change went."""

    async def update_target(self, path: str, revision: str | None) -> Outcome:
        """Serve another target. Raises `UpdateError` or `UpdateBusyError`."""

    async def refresh_target(self, weights: str, revision: str | None) -> Outcome:
        """Serve this target with other weights. Raises likewise."""

    async def use_head(self, head: str, revision: str | None) -> Outcome:
        """Draft with another head. Raises likewise."""

    async def roll_back(self) -> Outcome:
        """Serve the previous target. Raises likewise."""

    async def run_canary(self) -> Outcome:
        """Replay the canary beside the traffic. Raises likewise."""


@dataclass(frozen=True, slots=True)
class AdminApi:
    """The endpoints."""

    daemon: Daemon

    async def metrics(self, _: Request) -> Response:
        """`GET /metrics`."""
        return Response(self.daemon.metrics(), headers={"Content-Type": CONTENT_TYPE})

    async def document(self, _: Request) -> Response:
        """`GET /admin/v1/openapi.json`."""
        return json_response(admin_document(self.daemon.version))

    async def status(self, _: Request) -> Response:
        """`GET /admin/v1/status`."""
        return json_response(self.daemon.status())

    async def config(self, _: Request) -> Response:
        """`GET /admin/v1/config`."""
        return json_response(self.daemon.config())

    async def decisions(self, request: Request) -> Response:
        """`GET /admin/v1/decisions?limit=N&request=ID`."""
        limit = request.query_params.get("limit", str(_DEFAULT_LIMIT))
        if not limit.isdecimal() or not limit.isascii() or len(limit) > _LIMIT_DIGITS:
            raise ApiError(400, f"limit must be a whole number below a billion, not {limit!r}", param="limit")
        found = self.daemon.decisions(int(limit), request.query_params.get("request"))
        return json_response({"decisions": found})

    async def reload(self, request: Request) -> Response:
        """`POST /admin/v1/reload`, with nothing or `{"partial": true}`."""
        wanted = parsed(await request.body() or b"{}", ReloadBody)
        return await reconfigured(self.daemon.reload(partial=wanted.partial))

    async def set(self, request: Request) -> Response:
        """`PATCH /admin/v1/config` with `{"policy.k_max": 4}`: until the next reload."""
        values = parsed(await request.body(), dict[str, Any])
        return await reconfigured(self.daemon.set(values))

    async def accept_drift(self, request: Request) -> Response:
        """`POST /admin/v1/drift/accept` with any of `{"class": …, "temperature": …, "proposer": …}`, or nothing."""
        wanted = parsed(await request.body() or b"{}", DriftBody)
        try:
            found = await self.daemon.accept_drift(wanted.means)
        except UserError as fault:
            raise ApiError(422, str(fault), code="nothing_to_accept") from None
        return json_response({"result": "ok", "accepted": [stratum._asdict() for stratum in found]})

    async def target(self, _: Request) -> Response:
        """`GET /admin/v1/target`."""
        return json_response(self.daemon.target())

    async def update_target(self, request: Request) -> Response:
        """`POST /admin/v1/target` with `{"path": …}` or `{"weights": …}`, and `"revision"`. The answer comes when it
        has happened.
        """
        wanted = parsed(await request.body(), TargetBody)
        if bool(wanted.path) == bool(wanted.weights):
            raise ApiError(400, "name either a path or weights", code="invalid_body")
        if wanted.weights:
            return await _changed(self.daemon.refresh_target(wanted.weights, wanted.revision))
        return await _changed(self.daemon.update_target(wanted.path, wanted.revision))

    async def use_head(self, request: Request) -> Response:
        """`POST /admin/v1/draft` with `{"head": …}`, a directory, and `"revision"`."""
        wanted = parsed(await request.body(), DraftBody)
        return await _changed(self.daemon.use_head(wanted.head, wanted.revision))

    async def roll_back(self, _: Request) -> Response:
        """`POST /admin/v1/target/rollback`."""
        return await _changed(self.daemon.roll_back())

    async def run_canary(self, _: Request) -> Response:
        """`POST /admin/v1/target/canary`."""
        return await _changed(self.daemon.run_canary())


async def reconfigured(change: Awaitable[Reloaded]) -> Response:
    """The answer to a reload. Raises `ApiError`."""
    try:
        reloaded = await change
    except ReloadRefusedError as refused:
        raise ApiError(409, str(refused), code="restart_needed") from None
    except UserError as fault:
        raise ApiError(422, str(fault), code="invalid_config") from None
    return json_response(reloaded.as_json())


async def _changed(change: Awaitable[Outcome]) -> Response:
    try:
        outcome = await change
    except UpdateBusyError as busy:
        raise ApiError(409, str(busy), code="update_under_way") from None
    except UpdateError as fault:
        raise ApiError(422, str(fault), code="target_refused") from None
    return json_response({"result": "ok", **outcome.document()})


def admin_app(
    daemon: Daemon,
    alarm: Alarm,
    pages: Sequence[Route],
    keys: Keys,
    allowed_host: Callable[[str], bool],
) -> ASGIApp:
    """Keys are asked for under /admin; metrics and the page itself are open to whoever reaches the listener."""
    api = AdminApi(daemon)
    reads: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/metrics": api.metrics,
        "/admin/v1/openapi.json": api.document,
        "/admin/v1/status": api.status,
        "/admin/v1/config": api.config,
        "/admin/v1/decisions": api.decisions,
        "/admin/v1/target": api.target,
    }
    writes: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/admin/v1/reload": api.reload,
        "/admin/v1/drift/accept": api.accept_drift,
        "/admin/v1/draft": api.use_head,
        "/admin/v1/target": api.update_target,
        "/admin/v1/target/rollback": api.roll_back,
        "/admin/v1/target/canary": api.run_canary,
    }
    routes = [Route(path, endpoint) for path, endpoint in reads.items()]
    routes += [Route(path, endpoint, methods=["POST"]) for path, endpoint in writes.items()]
    routes.append(Route("/admin/v1/config", api.set, methods=["PATCH"]))
    app = application([*routes, *AlertsApi(alarm).routes(), *pages])
    guarded = RequireKey(LimitBodies(app, _MOST_BYTES), keys, "/admin")
    return RefuseForeignPages(guarded, allowed_host, prefix="/", advice=ADVICE)
