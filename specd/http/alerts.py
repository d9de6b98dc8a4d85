"""The admin listener's part of the alarm: what is open, silences, and a test of the way to the receivers."""

import time
from collections.abc import Sequence
from typing import Annotated, Any, Final, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specd.alerts.receivers.base import rfc3339
from specd.alerts.silences import Silence, new_silence, parse_duration
from specd.errors import UserError
from specd.http.asgi import json_response, parsed
from specd.http.errors import ApiError

_LABEL: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"
Label = Annotated[str, msgspec.Meta(pattern=_LABEL)]
Text = Annotated[str, msgspec.Meta(max_length=1000)]


class TestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a test asks for."""

    labels: Annotated[dict[Label, Text], msgspec.Meta(max_length=20)] = {}
    wait_seconds: Annotated[float, msgspec.Meta(ge=0, le=60)] = 10.0


class SilenceBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a silence asks for."""

    matchers: Annotated[list[Text], msgspec.Meta(min_length=1, max_length=20)]
    duration: str = msgspec.field(name="for")
    comment: Text = ""
    created_by: Text = ""

    def made(self, now: float) -> Silence:
        """Raises `UserError`."""
        return new_silence(
            self.matchers,
            parse_duration(self.duration),
            now,
            comment=self.comment,
            created_by=self.created_by,
        )


class Alarm(Protocol):
    """What the admin listener asks of the alarm."""

    def overview(self) -> dict[str, Any]:
        """Alerts, and whether those who are to hear of them do."""

    async def test(self, labels: dict[str, str], seconds: float) -> dict[str, Any]:
        """Tell every receiver of an alert that is none."""

    def silences(self) -> Sequence[Silence]:
        """In force, to come, or ended within a day."""

    async def silence(self, silence: Silence) -> None:
        """Raises `UserError`."""

    async def unsilence(self, name: str) -> bool:
        """False where there is none of this id."""


class AlertsApi:
    """The endpoints."""

    def __init__(self, alarm: Alarm) -> None:
        self._alarm = alarm

    def routes(self) -> list[Route]:
        """Under /admin."""
        return [
            Route("/admin/v1/alerts", self.alerts),
            Route("/admin/v1/alerts/test", self.test, methods=["POST"]),
            Route("/admin/v1/silences", self.silences),
            Route("/admin/v1/silences", self.silence, methods=["POST"]),
            Route("/admin/v1/silences", self.unsilence, methods=["DELETE"]),
        ]

    async def alerts(self, _: Request) -> Response:
        """`GET /admin/v1/alerts`."""
        return json_response(self._alarm.overview())

    async def test(self, request: Request) -> Response:
        """`POST /admin/v1/alerts/test` with `{"labels": {…}, "wait_seconds": …}`, or nothing."""
        wanted = parsed(await request.body() or b"{}", TestBody)
        return json_response(await self._alarm.test(wanted.labels, wanted.wait_seconds))

    async def silences(self, _: Request) -> Response:
        """`GET /admin/v1/silences`."""
        now = time.time()
        return json_response({"silences": [silence_json(one, now) for one in self._alarm.silences()]})

    async def silence(self, request: Request) -> Response:
        """`POST /admin/v1/silences` with `{"matchers": ["class=chat"], "for": "2h", "comment": …}`."""
        now = time.time()
        wanted = parsed(await request.body(), SilenceBody)
        try:
            made = wanted.made(now)
            await self._alarm.silence(made)
        except UserError as fault:
            raise ApiError(422, str(fault), code="invalid_silence") from None
        return json_response(silence_json(made, now), status=201)

    async def unsilence(self, request: Request) -> Response:
        """`DELETE /admin/v1/silences?id=ID`."""
        name = request.query_params.get("id", "")
        if not await self._alarm.unsilence(name):
            raise ApiError(404, f"there is no silence {name!r}: GET this path lists them", param="id")
        return json_response({"result": "ok", "id": name})


def silence_json(silence: Silence, now: float) -> dict[str, Any]:
    """For people and programs."""
    return {
        "id": silence.id,
        "state": silence.state(now),
        "matchers": [str(matcher) for matcher in silence.matchers],
        "startsAt": rfc3339(silence.starts_at),
        "endsAt": rfc3339(silence.ends_at),
        "comment": silence.comment,
        "createdBy": silence.created_by,
    }
