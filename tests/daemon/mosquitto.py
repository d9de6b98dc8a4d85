"""A real broker on a free port, and a client to look at it with."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiomqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.daemon.daemon_process import DEADLINE, wait_until

# Debian keeps it where only root looks.
PROGRAM = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")

needs_mosquitto = pytest.mark.skipif(
    PROGRAM is None, reason="needs mosquitto, which is in Debian's package of that name"
)


class Mosquitto:
    """Started by `start`; keeps its port, and forgets what was retained, over restarts."""

    def __init__(self, directory: Path, *lines: str, tls: bool = False) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"{'mqtts' if tls else 'mqtt'}://localhost:{self.port}"
        self._file = directory / "mosquitto.conf"
        self._log = directory / "mosquitto.log"
        user = ["user root"] if os.geteuid() == 0 else []
        own = [] if any(line.startswith("password_file") for line in lines) else ["allow_anonymous true"]
        self._file.write_text("\n".join([f"listener {self.port} 127.0.0.1", *user, *own, *lines, ""]))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self._log.read_text()

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen([PROGRAM, "-v", "-c", self._file], stdout=log, stderr=log)
        wait_until(self._accepts, f"mosquitto: {self.log}")

    def _accepts(self) -> bool:
        assert self._process.poll() is None, self.log
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Spy:
    """A client that hears everything, and may say something."""

    def __init__(self, client: aiomqtt.Client) -> None:
        self._client = client
        self.heard: list[aiomqtt.Message] = []

    async def listen(self) -> None:
        async for message in self._client.messages:
            self.heard.append(message)

    def at(self, topic: str) -> list[Any]:
        """Payloads, oldest first: as JSON where they are JSON objects, else as text."""
        found = [bytes(message.payload) for message in self.heard if str(message.topic) == topic]
        return [json.loads(one) if one.startswith(b"{") else one.decode() for one in found]

    async def until(self, condition: Callable[["Spy"], Any]) -> Any:
        """The first true value of the condition."""
        async with asyncio.timeout(DEADLINE):
            while not (value := condition(self)):  # noqa: ASYNC110 - what a broker delivers sets no event
                await asyncio.sleep(0.005)
        return value

    async def say(
        self,
        topic: str,
        payload: object = None,
        *,
        answer_at: str | None = None,
        tag: bytes | None = None,
        retain: bool = False,
    ) -> None:
        properties = Properties(PacketTypes.PUBLISH)
        if answer_at is not None:
            properties.ResponseTopic = answer_at
        if tag is not None:
            properties.CorrelationData = tag
        content = payload if payload is None or isinstance(payload, bytes) else json.dumps(payload)
        await self._client.publish(topic, content, 1, retain, properties)

    async def ask(self, topic: str, payload: object = None, *, retain: bool = False) -> dict[str, Any]:
        """Send a command, and the answer to it."""
        tag = os.urandom(8)
        await self.say(topic, payload, answer_at="answers/spy", tag=tag, retain=retain)
        message = await self.until(
            lambda spy: next((one for one in spy.heard if _tag(one) == (tag, "answers/spy")), None)
        )
        return json.loads(message.payload)


def _tag(message: aiomqtt.Message) -> tuple[bytes | None, str]:
    return getattr(message.properties, "CorrelationData", None), str(message.topic)


@contextlib.asynccontextmanager
async def spying(broker: Mosquitto, **options: Any) -> AsyncIterator[Spy]:
    """Connected, and subscribed to `#`."""
    client = aiomqtt.Client("127.0.0.1", broker.port, protocol=aiomqtt.ProtocolVersion.V5, **options)
    async with client:
        await client.subscribe("#", options=SubscribeOptions(qos=1, retainAsPublished=True))
        spy = Spy(client)
        listening = asyncio.ensure_future(spy.listen())
        try:
            yield spy
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError, aiomqtt.MqttError):
                await listening
