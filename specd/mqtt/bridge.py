"""The daemon's presence at a broker: connects, stays, comes back."""

import asyncio
import contextlib
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from specd.fleet.fleet import Fleet
from specd.fleet.overview import overview
from specd.mqtt.commands import Act, Answer, Desk
from specd.mqtt.counts import Counts
from specd.mqtt.link import Incoming, LinkError, Loss, connect
from specd.mqtt.session import OFFLINE, Session
from specd.mqtt.settings import Settings
from specd.mqtt.state import Told

log: Final = logging.getLogger(__name__)

_ANSWER_PATIENCE: Final = 60.0
_SESSIONS: Final = 16
"""So many of the last are known for our own."""


class NotPublishedError(ConnectionError):
    """A message did not reach the broker, or it threw it away; the text is a clause that says why."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait before the next attempt."""

    first: float = 1.0
    longest: float = 60.0
    taken_over: float = 30.0
    """On top, after another client came with our id: whoever comes back at once throws that one out in turn."""
    steady: float = 60.0
    """A connection that held for this long has put the failures before it behind."""

    def pause(self, failures: int, reason: Loss, rng: Random) -> float:
        """Seconds after so many failures in a row; random, so that a fleet does not come back all at once."""
        longest = min(self.longest, self.first * 2.0 ** min(failures - 1, 32))
        extra = self.taken_over if reason == "taken_over" else 0.0
        return extra + rng.uniform(longest / 2, longest)


class Bridge:
    """Without settings it does nothing, and says so."""

    def __init__(
        self,
        settings: Settings | None,
        *,
        look: Callable[[], Told],
        acts: Mapping[str, Act],
        counts: Counts,
        patience: Patience = Patience(),
        rng: Random | None = None,
    ) -> None:
        """`look` tells how the daemon stands now; `acts` are the commands that can be carried out."""
        self._settings = settings
        self._look = look
        self._counts = counts
        self._patience = patience
        self._rng = rng or Random()  # noqa: S311
        self._desk = Desk(acts, self._answer)
        self._fleet = Fleet()
        self._changed = asyncio.Event()
        self._session: Session | None = None
        self._earlier: deque[str] = deque(maxlen=_SESSIONS)
        self._open = asyncio.Event()
        self._trouble: str | None = None
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def configure(self, settings: Settings | None) -> None:
        """Use these from now on; a connection by others is left with a goodbye."""
        if settings != self._settings:
            self._settings = settings
            self._changed.set()

    def start(self) -> None:
        """Begin, until `aclose`."""
        self._task = asyncio.create_task(self._run())

    async def aclose(self, grace: float) -> None:
        """Say goodbye, within `grace` seconds, and end."""
        self._closing = True
        self._changed.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=grace)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._desk.aclose()

    def status(self) -> dict[str, Any]:
        """For people."""
        settings, session = self._settings, self._session
        return {
            "broker": None if settings is None else f"{settings.host}:{settings.port}",
            "node": None if settings is None else settings.topics.node,
            "connected": self._open.is_set(),
            "denied_topics": [] if session is None else sorted(session.denied),
            "trouble": self._trouble,
        }

    def fleet(self) -> dict[str, Any] | None:
        """What all nodes below the prefix tell of themselves; None where nobody listens to them."""
        if self._settings is None or not self._settings.section.fleet:
            return None
        status = self.status()
        return {
            **{key: status[key] for key in ("broker", "node", "connected", "trouble")},
            **overview(self._fleet, time.time()),
        }

    async def publish_alert(self, payload: bytes) -> None:
        """To the topic of alerts. Raises `NotPublishedError`; then nobody knows whether it was, so try again."""
        session = self._session
        if session is None or not self._open.is_set():
            raise NotPublishedError(self._trouble or "no broker is connected")
        try:
            if not await session.alert(payload):
                raise NotPublishedError("it did not come back: the broker's access list forbids it")
        except LinkError as error:
            raise NotPublishedError(str(error)) from None

    async def _run(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while not self._closing:
            self._changed.clear()
            self._counts.connected = None if self._settings is None else False
            if self._settings is None:
                self._trouble = None
                await self._changed.wait()
                continue
            begun = loop.time()
            try:
                await self._hold(self._settings)
                failures = 0
            except LinkError as error:
                failures = 1 if loop.time() - begun >= self._patience.steady else failures + 1
                await self._recover(error, failures)
            except Exception:
                # A fault of ours; without a broker the daemon would be as good, but silent.
                log.exception("the connection to the broker failed")
                failures += 1
                await self._recover(LinkError("lost", "a fault of specd; its log says more"), failures)

    async def _hold(self, settings: Settings) -> None:
        """One connection, until the settings change. Raises `LinkError`."""
        will = (settings.topics.availability, OFFLINE)
        async with connect(settings, uuid.uuid4().hex, will) as link:
            self._fleet.begin(
                settings.topics.prefix
            )  # of a node that is gone from the broker nobody will tell
            self._session = Session(
                tuple(self._earlier),
                link,
                settings,
                look=self._look,
                command=self._command,
                fleet=self._fleet,
                counts=self._counts,
            )
            self._earlier.append(link.session)
            try:
                await self._session.run(self._changed, self._opened)
            finally:
                self._session = None
                self._open.clear()
                self._counts.connected = False
                self._counts.denied = 0

    def _opened(self) -> None:
        self._open.set()
        self._trouble = None
        self._counts.connected = True
        log.info("connected to the MQTT broker")

    async def _recover(self, error: LinkError, failures: int) -> None:
        self._counts.lost(error.reason)
        self._trouble = str(error)
        seconds = self._patience.pause(failures, error.reason, self._rng)
        log.warning("MQTT broker %s: %s; next attempt in %.1f s", error.reason, self._trouble, seconds)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def _command(self, verb: str, message: Incoming) -> None:
        if self._settings is not None:
            self._desk.take(verb, message, self._settings.section.commands)

    async def _answer(self, message: Incoming, answer: Answer) -> None:
        """Over the connection that there is by now: a reload may have put another in place."""
        self._counts.answered(answer.verb, answer.outcome)
        settings, topic = self._settings, message.response_topic
        if topic is None or settings is None:
            return
        if not settings.topics.answerable(topic):
            log.warning("the answer is not published: %r is no topic for answers", topic)
            return
        try:
            await asyncio.wait_for(self._open.wait(), _ANSWER_PATIENCE)
            if self._session is not None:
                await self._session.answer(topic, answer.payload(settings.topics.node), message.correlation)
        except (TimeoutError, LinkError):
            log.warning("the answer to %r could not be published", answer.verb)
