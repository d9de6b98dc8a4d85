"""One connection to a broker. The only module that knows aiomqtt.

What aiomqtt leaves to its user is done here:
  * a call that waits for an acknowledgement does not notice that the connection is lost: `listen` does, so whoever uses
    a link runs that beside all else;
  * a publication that the broker's access list forbids looks like one that was taken: `seen` waits for its echo;
  * what comes in is kept without bound: here there is one;
  * a client that is entered again after a loss may send twice: a link is one client and one connection.
"""

import asyncio
import contextlib
import math
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from specd.mqtt.settings import Settings

Loss = Literal["unreachable", "refused", "silent", "lost", "taken_over"]
"""Why there is no connection, or none any more."""

LARGEST: Final = 64 * 1024
"""Bytes of a packet; the broker keeps larger ones back."""

_QUEUED: Final = 256
_MOMENT: Final = 0.1
_AT_LEAST_ONCE: Final = 1
_NO_REASON: Final = 0x80
_TAKEN_OVER: Final = 0x8E
_REFUSED: Final = 0x80  # reason codes from here on
_ID, _SESSION = "id", "session"

_properties: Callable[[int], Any] = Properties
"""Untyped in paho, as are the attributes that it takes."""


class LinkError(Exception):
    """There is no connection. `reason` is for counters, the text for people."""

    def __init__(self, reason: Loss, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message from the broker."""

    topic: str
    payload: bytes
    retained: bool
    """Sent with the wish to be kept, whether it came at once or is an old one."""
    session: str | None
    """The session of the specd that sent it, if one did."""
    response_topic: str | None
    correlation: bytes | None


class Link:
    """An open connection. Every method may raise `LinkError`; then the link is of no more use."""

    def __init__(self, client: aiomqtt.Client, session: str, timeout: float) -> None:
        """`session` goes with all that is said by `seen`, and with the last will."""
        self._client = client
        self.session = session
        self._timeout = timeout
        self._awaited: dict[str, asyncio.Event] = {}
        self._came = asyncio.Event()

    async def listen(self, take: Callable[[Incoming], None]) -> None:
        """Hand over what comes in. Ends only by `LinkError`."""
        with _losses("lost"):
            async for message in self._client.messages:
                user = dict(getattr(message.properties, "UserProperty", ()))
                echo = self._awaited.get(user.get(_ID, ""))
                if echo is not None:
                    echo.set()
                self._came.set()
                take(_incoming(message, user.get(_SESSION)))

    async def subscribe(self, topic: str, *, old_ones: bool, as_published: bool = True) -> bool:
        """Whether the broker allows it. `old_ones`: deliver what is retained there already, too. as_published: False
        has `Incoming.retained` of those alone, not of what is sent from now on with the wish to be kept.
        """
        options = SubscribeOptions(
            qos=_AT_LEAST_ONCE,
            retainAsPublished=as_published,
            retainHandling=SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE
            if old_ones
            else SubscribeOptions.RETAIN_DO_NOT_SEND,
        )
        async with self._answer():
            codes = await self._client.subscribe(topic, options=options, timeout=math.inf)
        return all((code.value if isinstance(code, ReasonCode) else code) < _REFUSED for code in codes)

    async def settled(self, quiet: float, longest: float) -> None:
        """Nothing has come for `quiet` seconds, or `longest` have passed: no broker says when it has sent all that is
        retained, and what comes faster than it is taken is thrown away here.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest):
                while await self.anything(quiet):
                    pass

    async def anything(self, seconds: float) -> bool:
        """Whether something comes within so long."""
        self._came.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._came.wait(), seconds)
        return self._came.is_set()

    async def publish(
        self, topic: str, payload: bytes, *, expiry: int | None = None, correlation: bytes | None = None
    ) -> None:
        """Returns when the broker has acknowledged it, which it also does where it throws it away.

        `expiry`: seconds after which nobody needs it any more.
        """
        properties = _properties(PacketTypes.PUBLISH)
        if expiry is not None:
            properties.MessageExpiryInterval = expiry
        if correlation is not None:
            properties.CorrelationData = correlation
        await self._publish(topic, payload, properties, retain=False)

    async def seen(self, topic: str, payload: bytes, *, retain: bool) -> bool:
        """Publish to a topic that this link has subscribed to; whether it came back."""
        properties, message_id, echo = _properties(PacketTypes.PUBLISH), uuid.uuid4().hex, asyncio.Event()
        properties.UserProperty = [(_ID, message_id), (_SESSION, self.session)]
        self._awaited[message_id] = echo
        try:
            await self._publish(topic, payload, properties, retain=retain)
            await asyncio.wait_for(echo.wait(), self._timeout)
        except TimeoutError:
            return False
        finally:
            del self._awaited[message_id]
        return True

    async def _publish(self, topic: str, payload: bytes, properties: Properties, *, retain: bool) -> None:
        async with self._answer():
            await self._client.publish(topic, payload, _AT_LEAST_ONCE, retain, properties, timeout=math.inf)

    @contextlib.asynccontextmanager
    async def _answer(self) -> AsyncIterator[None]:
        """Around what the broker has to acknowledge."""
        try:
            with _losses("lost"):
                async with asyncio.timeout(self._timeout):
                    yield
        except TimeoutError:
            raise LinkError("silent", f"the broker did not answer within {self._timeout:g} s") from None


@contextlib.asynccontextmanager
async def connect(settings: Settings, session: str, will: tuple[str, bytes] | None) -> AsyncIterator[Link]:
    """Open a link. `will`: topic and payload of what is retained there once we have gone or vanished; None of who only
    listens.

    The broker sees to that where we vanish; after a clean end it does not, so it is said here, however the end came.
    Raises `LinkError`. Cannot be cancelled before it has an answer: a thread is at work in it.
    """
    section = settings.section
    client = aiomqtt.Client(
        settings.host,
        settings.port,
        username=section.user or None,
        password=settings.password,
        identifier=settings.client_id,
        protocol=aiomqtt.ProtocolVersion.V5,
        will=None if will is None else _last_will(*will, session),
        timeout=section.timeout_seconds,
        keepalive=section.keepalive_seconds,
        max_queued_incoming_messages=_QUEUED,
        properties=_limits(),
        tls_context=settings.tls,
    )
    try:
        with _losses("refused"):
            await client.__aenter__()
        try:
            yield Link(client, session, section.timeout_seconds)
        finally:
            if will is not None:
                last = _signed(PacketTypes.PUBLISH, session)
                with contextlib.suppress(aiomqtt.MqttError):
                    await client.publish(*will, _AT_LEAST_ONCE, True, last, timeout=_MOMENT)
    finally:
        # A client that got no answer still holds its socket.
        client.timeout = _MOMENT
        with contextlib.suppress(aiomqtt.MqttError):
            await client.__aexit__(None, None, None)


def _last_will(topic: str, payload: bytes, session: str) -> aiomqtt.Will:
    signed = _signed(PacketTypes.WILLMESSAGE, session)
    return aiomqtt.Will(topic, payload, _AT_LEAST_ONCE, retain=True, properties=signed)


def _signed(packet: int, session: str) -> Properties:
    properties: Properties = _properties(packet)
    properties.UserProperty = [(_SESSION, session)]
    return properties


def _limits() -> Properties:
    properties: Properties = _properties(PacketTypes.CONNECT)
    properties.MaximumPacketSize = LARGEST
    return properties


def _incoming(message: aiomqtt.Message, session: str | None) -> Incoming:
    return Incoming(
        topic=str(message.topic),
        payload=bytes(message.payload or b""),
        retained=bool(message.retain),
        session=session,
        response_topic=getattr(message.properties, "ResponseTopic", None),
        correlation=getattr(message.properties, "CorrelationData", None),
    )


@contextlib.contextmanager
def _losses(by_code: Loss) -> Iterator[None]:
    """aiomqtt's errors as ours; `by_code` where the broker gave a reason."""
    try:
        yield
    except aiomqtt.MqttError as error:
        codes = (getattr(one, "rc", None) for one in (error.__cause__, error))
        code = next((code for code in codes if isinstance(code, ReasonCode)), None)
        if code is None:
            raise LinkError("unreachable" if by_code == "refused" else "lost", str(error)) from None
        text = "the connection was lost" if code.value == _NO_REASON else f"the broker said: {code}"
        raise LinkError("taken_over" if code.value == _TAKEN_OVER else by_code, text) from None
