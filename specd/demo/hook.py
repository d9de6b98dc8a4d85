"""Somebody who takes webhooks, checks their signatures, and tells of them."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from specd.http.listen import Listener, Server


@dataclass(frozen=True, slots=True)
class Notice:
    """An alert as it was delivered."""

    name: str
    kind: str
    status: str
    """firing or resolved."""
    summary: str
    genuine: bool
    """Whether the signature is right."""


@dataclass(frozen=True, slots=True)
class Hook:
    """Where webhooks are taken, and what they are to be signed with."""

    url: str
    secret: str
    """As a receiver's `secret_file` holds it."""


@asynccontextmanager
async def hook(notices: asyncio.Queue[Notice]) -> AsyncIterator[Hook]:
    """Listens on a free port of the loopback; `notices` gets each alert of each message."""
    key = secrets.token_bytes(32)

    async def take(request: Request) -> Response:
        body = await request.body()
        genuine = _genuine(key, request.headers, body)
        for alert in msgspec.json.decode(body)["alerts"]:
            notices.put_nowait(_notice(alert, genuine=genuine))
        return Response(status_code=204)

    with contextlib.closing(Listener("the demo's webhook", "127.0.0.1:0")) as listener:
        server = Server(Starlette(routes=[Route("/", take, methods=["POST"])]))
        serving = asyncio.create_task(server.serve(sockets=[listener.socket]))
        try:
            yield Hook(f"{listener.url}/", f"whsec_{base64.b64encode(key).decode()}")
        finally:
            server.should_exit = True
            await serving


def _notice(alert: Mapping[str, Any], *, genuine: bool) -> Notice:
    labels = alert["labels"]
    return Notice(
        name=labels["alertname"],
        kind=labels.get("kind", ""),
        status=alert["status"],
        summary=alert["annotations"].get("summary", ""),
        genuine=genuine,
    )


def _genuine(key: bytes, headers: Mapping[str, str], body: bytes) -> bool:
    """As the Standard Webhooks scheme says it."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    return any(hmac.compare_digest(wanted, one) for one in headers["webhook-signature"].split())
