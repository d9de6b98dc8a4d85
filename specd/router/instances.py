"""The two instances: who of them serves, as their health says and as requests find them."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import httpx2

from specd.config.router import RouterSection
from specd.errors import clause
from specd.router.choice import NAMES, Name

log = logging.getLogger(__name__)

_LONGEST_WHY: Final = 200


class Instance:
    """One of them."""

    def __init__(self, name: Name, router: Callable[[], RouterSection]) -> None:
        """router: the section in force."""
        self.name = name
        self._router = router
        self.down: str | None = None
        """Why it does not serve; None where it does, or nobody has looked yet."""
        self.looked_at = False
        self.running = 0

    @property
    def url(self) -> str:
        """Where it is now."""
        url: str = getattr(self._router(), self.name)
        return url

    def found(self, why_not: str | None) -> None:
        """It serves, or why it does not."""
        why_not = why_not and why_not[:_LONGEST_WHY]
        if why_not is not None and self.down is None:
            log.warning(
                "the %s instance does not serve (%s): the other one gets its requests", self.name, why_not
            )
        elif why_not is None and (self.down is not None or not self.looked_at):
            log.info("the %s instance serves", self.name)
        self.down, self.looked_at = why_not, True

    def status(self) -> dict[str, Any]:
        """For people."""
        return {
            "url": self.url,
            "serves": self.looked_at and self.down is None,
            "why_not": self.down,
            "running": self.running,
        }


class Instances:
    """Both, and one HTTP client for them."""

    def __init__(self, router: Callable[[], RouterSection], key: str | None) -> None:
        """router: the section in force. key: what is shown to the instances; None for none."""
        self._router = router
        self.all: Mapping[Name, Instance] = {name: Instance(name, router) for name in NAMES}
        self.key = key
        # A connection that is kept may be closed by the other side in the moment in which it is used again, and then
        # nobody knows whether the request was begun. To make a new one costs nothing beside an answer.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        self.http = httpx2.AsyncClient(limits=limits, timeout=None, trust_env=False)

    @property
    def down(self) -> dict[Name, str]:
        """Those that do not serve, and why."""
        return {name: one.down for name, one in self.all.items() if one.down is not None}

    @property
    def running(self) -> int:
        """Requests in flight."""
        return sum(one.running for one in self.all.values())

    def unready(self) -> str | None:
        """Why no request would be answered now, if so."""
        if len(self.down) == len(self.all):
            return "; ".join(f"{name}: {why}" for name, why in self.down.items())
        if not any(one.looked_at for one in self.all.values()):
            return "no instance has been looked at yet"
        return None

    @contextmanager
    def at(self, name: Name) -> Iterator[Instance]:
        """A request is at this one."""
        instance = self.all[name]
        instance.running += 1
        try:
            yield instance
        finally:
            instance.running -= 1

    async def watch(self) -> None:
        """Look at their health again and again, until cancelled."""
        while True:
            await asyncio.gather(*(self._look_at(one) for one in self.all.values()))
            await asyncio.sleep(self._router().check_seconds)

    async def aclose(self) -> None:
        """Close what is open."""
        await self.http.aclose()

    def timeouts(self) -> httpx2.Timeout:
        """For a request."""
        router = self._router()
        return httpx2.Timeout(router.silence_seconds, connect=router.connect_seconds)

    def status(self) -> dict[str, Any]:
        """For people."""
        return {name: self.all[name].status() for name in NAMES}

    async def _look_at(self, instance: Instance) -> None:
        router = self._router()
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        try:
            answer = await self.http.get(
                f"{instance.url}{router.health_path}", headers=headers, timeout=router.connect_seconds
            )
        except httpx2.HTTPError as error:
            instance.found(clause(error))
        else:
            instance.found(
                None if answer.is_success else f"{router.health_path} answers {answer.status_code}"
            )
