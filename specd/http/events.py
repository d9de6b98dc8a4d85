"""`GET /admin/v1/events`: the daemon's state as server-sent events, in parts, each again when it has changed.

  id: 5f3c09aa-17          give the last one back as `Last-Event-ID`, and only what came after it is told
  event: status            which part `data` takes the place of
  data: {…}

The last event of a look has the id, so that a stream that breaks before it is told all of that look again.
`?only=alerts,target` asks for some of the parts.
"""

import time
from collections.abc import Collection
from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from specd.dashboard.feed import MOST, CrowdedError, Feed
from specd.http.asgi import until_disconnect
from specd.http.errors import ApiError
from specd.http.sse import PING_SECONDS, EventStream

_LONGEST: Final = 900.0
"""Seconds of a stream. Whoever comes back is asked for the token of then."""


class Events:
    """The endpoint, for every listener there may be."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls it. `HEAD` has no stream, only its headers."""
        request = Request(scope)
        names = self._names(request.query_params.get("only", ""))
        last = request.headers.get("last-event-id", "")
        seconds = _LONGEST if scope["method"] == "GET" else 0.0
        try:
            with self._feed.place():
                await until_disconnect(receive, self._tell(EventStream(send), names, last, seconds))
        except CrowdedError:
            raise ApiError(
                503,
                f"{MOST} listen already, which is all that may: close a dashboard, or try again later",
                code="too_many_listeners",
                headers={"Retry-After": "10"},
            ) from None

    def _names(self, only: str) -> Collection[str]:
        names = only.split(",") if only else self._feed.names
        for name in names:
            if name not in self._feed.names:
                there = ", ".join(self._feed.names)
                raise ApiError(400, f"only: there is no part {name!r}; there are {there}", param="only")
        return names

    async def _tell(self, stream: EventStream, names: Collection[str], last: str, seconds: float) -> None:
        await stream.open()
        said_at = time.monotonic()
        async with aclosing(self._feed.listen(names, last, seconds)) as looks:
            async for news in looks:
                for left, part in zip(reversed(range(len(news.parts))), news.parts, strict=True):
                    await stream.part(part.name, part.body, None if left else news.id)
                now = time.monotonic()
                if news.parts:
                    said_at = now
                elif now - said_at >= PING_SECONDS:
                    await stream.ping()
                    said_at = now
        await stream.close()
