"""One attempt to send a message: over HTTP, or to the broker."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import httpx2

from specd.alerts.addresses import client
from specd.alerts.attempts import Failure, judge
from specd.alerts.receivers import mqtt
from specd.alerts.receivers.base import Publisher, Target
from specd.alerts.receivers.kinds import KINDS
from specd.alerts.store import Message
from specd.mqtt.bridge import NotPublishedError

log: Final = logging.getLogger(__name__)

# The client logs every URL at INFO, and a receiver's URL may well be its only secret.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)

_BROKER_PAUSE: Final = 5.0
"""The connection has pauses of its own: once it is there, alerts shall not wait for minutes."""

_NO_BROKER: Final = Failure("there is no broker: configure [mqtt]")


class Sender:
    """The ways out."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives Unix seconds: the time of an attempt is signed with it."""
        self._clock = clock
        self._clients: dict[bool, httpx2.AsyncClient] = {}  # made when used: that reads every certificate
        self.publisher: Publisher | None = None
        """The way to the broker."""

    async def attempt(self, target: Target, message: Message) -> Failure | None:
        """Try once, for as long as the receiver may take; None when it has it. Raises nothing."""
        limit = target.section.timeout_seconds
        try:
            async with asyncio.timeout(limit):
                return await self._send(target, message)
        except TimeoutError:
            return Failure(f"it did not answer within {limit:g} s")
        except NotPublishedError as error:
            return Failure(str(error), longest_pause=_BROKER_PAUSE)
        except httpx2.HTTPError as error:
            return Failure(f"{type(error).__name__}: {error}")
        except Exception as error:
            # A fault of ours, but the lane must live: what is behind in it would be lost without a word.
            log.exception("receiver %s could not be tried", message.receiver)
            return Failure(f"{type(error).__name__}")

    async def aclose(self) -> None:
        """Close all connections."""
        for one in self._clients.values():
            await one.aclose()

    async def _send(self, target: Target, message: Message) -> Failure | None:
        now = self._clock()
        make = KINDS[target.section.kind].post
        if make is None:
            return await self._publish(message)
        post = make(target, message, now)
        to = self._client(private=target.section.private_addresses)
        # Streamed, so that the body of the answer, which may be endless, is never read.
        async with to.stream("POST", post.url, content=post.content, headers=post.headers) as answer:
            return judge(answer.status_code, answer.headers.get("retry-after"), now)

    def _client(self, *, private: bool) -> httpx2.AsyncClient:
        if private not in self._clients:
            self._clients[private] = client(private=private)
        return self._clients[private]

    async def _publish(self, message: Message) -> Failure | None:
        if self.publisher is None:
            return _NO_BROKER
        await self.publisher.publish_alert(mqtt.payload(message))
        return None
