"""A look at the fleet from a client of one's own, which says nothing and needs no daemon."""

import asyncio
import dataclasses
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

from specd.errors import UserError
from specd.fleet.fleet import Fleet
from specd.fleet.following import follow
from specd.fleet.overview import overview
from specd.mqtt.link import Incoming, Link, LinkError, connect
from specd.mqtt.settings import Settings

_QUIET: Final = 0.3

Document = dict[str, Any]


class Listening:
    """What has been heard so far over one connection."""

    def __init__(self, settings: Settings, wanted: str | None = None) -> None:
        """wanted: the revision that is to be served; None for what the last update brought."""
        self._settings = settings
        self._wanted = wanted
        self._fleet = Fleet()
        self._fleet.begin(settings.topics.prefix)

    async def run(self, until: Callable[[Document], bool], seconds: float) -> Document:
        """How the fleet stands once what is retained has come and `until` holds, or so many seconds have passed.
        Raises `UserError` where the broker cannot be reached, or does not let us read.
        """
        # Not the daemon's id: a client that comes with that throws the daemon out.
        own = dataclasses.replace(self._settings, client_id=f"specd-fleet-{uuid.uuid4().hex[:12]}")
        try:
            async with connect(own, uuid.uuid4().hex, None) as link:
                return await self._beside(link, until, seconds)
        except LinkError as error:
            raise UserError(f"the broker at {own.host}:{own.port} is of no help: {error}") from None

    async def _beside(self, link: Link, until: Callable[[Document], bool], seconds: float) -> Document:
        """The same, while the link is listened to; its loss ends it."""
        listening = asyncio.ensure_future(link.listen(self._take))
        waiting = asyncio.ensure_future(self._told(link, until, seconds))
        try:
            await asyncio.wait({listening, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (listening, waiting):
                task.cancel()
            await asyncio.gather(listening, waiting, return_exceptions=True)
        if not listening.cancelled():
            listening.result()
        return waiting.result()

    async def _told(self, link: Link, until: Callable[[Document], bool], seconds: float) -> Document:
        async for topic in follow(link, self._fleet, quiet=_QUIET):
            raise UserError(
                f"the broker does not let {self._settings.section.user or 'an unnamed client'} read {topic}:"
                " allow it in its access list"
            )
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not until(document := self.document()) and (left := end - loop.time()) > 0:
            await link.anything(left)
        return document

    def document(self) -> Document:
        """What has been heard, as `specd.fleet.overview` has it."""
        settings = self._settings
        return {
            "broker": f"{settings.host}:{settings.port}",
            **overview(self._fleet, time.time(), self._wanted),
        }

    def _take(self, message: Incoming) -> None:
        self._fleet.take(message.topic, message.payload, old=message.retained)
