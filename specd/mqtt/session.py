"""What is said over one connection, between `online` and `offline`."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from specd.fleet.fleet import Fleet
from specd.fleet.following import follow
from specd.mqtt.counts import Counts
from specd.mqtt.link import Incoming, Link
from specd.mqtt.settings import Settings
from specd.mqtt.state import Told

log: Final = logging.getLogger(__name__)

ONLINE: Final = b"online"
OFFLINE: Final = b"offline"

_LOOK_SECONDS: Final = 1.0
_QUIET: Final = 0.1
_ANSWER_EXPIRES: Final = 300


class Session:
    """Tells what is new, and hands on what comes in."""

    def __init__(
        self,
        earlier: Sequence[str],
        link: Link,
        settings: Settings,
        *,
        look: Callable[[], Told],
        command: Callable[[str, Incoming], None],
        fleet: Fleet,
        counts: Counts,
    ) -> None:
        """`earlier`: ids of the sessions that this daemon had before. `look`: how it stands now. fleet: is told what
        other nodes say, if that is listened to.
        """
        self.denied: set[str] = set()
        """Own topics whose last message did not come back."""
        self._earlier = earlier
        self._link = link
        self._topics = settings.topics
        self._section = settings.section
        self._look = look
        self._command = command
        self._fleet = fleet
        self._counts = counts
        self._born = self._contradicted = False
        self._strangers: set[str | None] = set()

    async def run(self, ended: asyncio.Event, open_: Callable[[], None]) -> None:
        """Until `ended`; `open_` is called once all has been said for the first time. Raises `LinkError`."""
        await _first(self._link.listen(self._take), self._tell(ended, open_))

    async def alert(self, payload: bytes) -> bool:
        """Publish a notification; whether it came back. Raises `LinkError`."""
        return await self._say(self._topics.alerts, payload, retain=False)

    async def answer(self, topic: str, payload: bytes, correlation: bytes | None) -> None:
        """To a command. Raises `LinkError`."""
        await self._link.publish(topic, payload, expiry=_ANSWER_EXPIRES, correlation=correlation)

    async def _tell(self, ended: asyncio.Event, open_: Callable[[], None]) -> None:
        await self._subscribe()
        await self._say(self._topics.availability, ONLINE)
        self._born, self._contradicted = True, False
        told = await self._tell_anew(None)
        open_()
        await self._follow_fleet()
        loop = asyncio.get_running_loop()
        said_at = loop.time()
        while not await _set_within(ended, _LOOK_SECONDS):
            if self._contradicted:
                self._contradicted = False
                await self._say(self._topics.availability, ONLINE)
            due = loop.time() - said_at >= self._section.state_seconds
            new = await self._tell_anew(None if due else told)
            if new is not told:
                told, said_at = new, loop.time()

    async def _tell_anew(self, told: Told | None) -> Told:
        """Say what is new since `told`, and everything where that is None; what has been told now."""
        new = self._look()
        if told is not None and told.target == new.target and told.same_state(new):
            return told
        if told is None or told.target != new.target:
            await self._say(self._topics.target, _json(new.target))
        await self._say(self._topics.state, _json(new.state | {"state_seconds": self._section.state_seconds}))
        return new

    async def _subscribe(self) -> None:
        for topic in self._topics.own:
            await self._link.subscribe(topic, old_ones=topic == self._topics.availability)
        if self._section.commands:
            for topic in self._topics.commands:
                if not await self._link.subscribe(topic, old_ones=True):
                    log.error("the broker does not let specd read %s: no command arrives by it", topic)

    async def _follow_fleet(self) -> None:
        if not self._section.fleet:
            return
        async for topic in follow(self._link, self._fleet, quiet=_QUIET):
            log.warning(
                "the broker does not let specd read %s: the dashboard shows no other node. Allow it, or set"
                " mqtt.fleet = false",
                topic,
            )

    async def _say(self, topic: str, payload: bytes, *, retain: bool = True) -> bool:
        seen = await self._link.seen(topic, payload, retain=retain)
        if seen == (topic in self.denied):
            self._note(topic, seen=seen)
        return seen

    def _note(self, topic: str, *, seen: bool) -> None:
        (self.denied.discard if seen else self.denied.add)(topic)
        self._counts.denied = len(self.denied)
        if seen:
            log.info("what specd publishes to %s comes back again", topic)
        else:
            log.error(
                "what specd publishes to %s does not come back: allow it to write and to read that topic in the"
                " broker's access list",
                topic,
            )

    def _take(self, message: Incoming) -> None:
        verb = self._topics.verb(message.topic)
        if verb is not None:
            self._command(verb, message)
            return
        if self._section.fleet:
            self._fleet.take(message.topic, message.payload, old=message.retained)
        if message.topic == self._topics.availability and message.session != self._link.session:
            self._hear_of_another(message)

    def _hear_of_another(self, message: Incoming) -> None:
        """Somebody else spoke of this node: an earlier session of ours, by its will, or another daemon.

        What is retained from before this daemon's first session says nothing of who lives now.
        """
        self._contradicted |= message.payload != ONLINE
        suspicious = message.payload == ONLINE if self._born else bool(self._earlier)
        if suspicious and message.session not in self._earlier and message.session not in self._strangers:
            self._strangers.add(message.session)
            log.error(
                "another specd speaks as node %s: give one of them another mqtt.node", self._topics.node
            )


def _json(message: dict[str, Any]) -> bytes:
    return json.dumps(message, ensure_ascii=False).encode()


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


async def _first(*works: Coroutine[Any, Any, None]) -> None:
    """Run them all until one ends, and end as that one did, or the first of those that did."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.result()
