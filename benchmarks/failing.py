"""Receivers that fail, a broker that is restarted and a daemon that is killed, as `benchmarks.delivery` needs them."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, Self

import aiomqtt
import httpx2
import tomli_w
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from benchmarks.ports import free_port

_FAILS: Final = 0.2
_START_SECONDS: Final = 60.0
_LIFE: Final = (0.05, 0.6)
"""Seconds between the first answer of a daemon and its end."""
_NODE: Final = "delivery"
_PATH: Final = f"{os.environ['PATH']}:/usr/sbin"
_SERVE: Final = """
import sys
from pathlib import Path
from specd.config.layers import load
from specd.daemon import serve
sys.exit(serve(load(Path(sys.argv[1])), engine_command=(sys.executable, "-c", "import time; time.sleep(1e6)")))
"""


class Copy(NamedTuple):
    """A notice as a receiver got it."""

    fingerprint: str
    status: str


class Hook:
    """A webhook that fails one time in five: half of those it refuses with 503, half it takes without a word."""

    def __init__(self, seed: int) -> None:
        self.copies: list[Copy] = []
        self.failed = 0
        self.url = ""
        self._chance = Random(seed)  # noqa: S311
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None, "entered before"
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
            status = self._take(json.loads(await reader.readexactly(length)))
            if status:
                writer.write(
                    f"HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()
                )
                await writer.drain()
        writer.close()

    def _take(self, message: dict[str, Any]) -> int:
        """The status to answer with; 0 for none."""
        fails = self._chance.random()
        self.failed += fails < _FAILS
        if fails < _FAILS / 2:
            return 503
        self.copies += [Copy(alert["fingerprint"], alert["status"]) for alert in message["alerts"]]
        return 0 if fails < _FAILS else 200


class Broker:
    """A mosquitto that remembers, and a subscriber whose session outlives its restarts."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self.copies: list[Copy] = []
        self.restarts = 0
        self._file = directory / "mosquitto.conf"
        user = "user root\n" if os.geteuid() == 0 else ""
        self._file.write_text(
            f"listener {self.port} 127.0.0.1\n{user}allow_anonymous true\nmax_queued_messages 0\n"
            f"persistence true\npersistence_location {directory}/\n"
        )
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """The broker, and the first time the subscriber too; returns once both are there."""
        program = shutil.which("mosquitto", path=_PATH)
        if program is None:
            raise FileNotFoundError(
                "mosquitto is not installed: install it, or leave it out with --restarts 0"
            )
        self._process = await asyncio.create_subprocess_exec(
            program, "-c", self._file, stderr=asyncio.subprocess.DEVNULL
        )
        await _until(self._accepts)
        if self._listening is None:
            subscribed = asyncio.Event()
            self._listening = asyncio.ensure_future(self._listen(subscribed))
            await subscribed.wait()

    async def restart(self) -> None:
        """It writes down what it has, ends, and begins anew."""
        await self._stop()
        await self.start()
        self.restarts += 1

    async def end(self) -> None:
        """Broker and subscriber."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        await self._stop()

    async def _stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()

    async def _accepts(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        return True

    async def _listen(self, subscribed: asyncio.Event) -> None:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # of paho's
        properties.SessionExpiryInterval = 3600
        while True:
            with contextlib.suppress(aiomqtt.MqttError):
                async with aiomqtt.Client(
                    "127.0.0.1",
                    self.port,
                    identifier="subscriber",
                    protocol=aiomqtt.ProtocolVersion.V5,
                    clean_start=False,
                    properties=properties,
                ) as client:
                    await client.subscribe(f"specd/{_NODE}/alerts", qos=1)
                    subscribed.set()
                    async for message in client.messages:
                        alert = json.loads(bytes(message.payload))
                        self.copies.append(Copy(alert["fingerprint"], alert["status"]))
            await asyncio.sleep(0.1)


class Daemon:
    """A daemon that is started, told of alerts, and killed."""

    def __init__(self, directory: Path, model: str, hooks: dict[str, str], broker: str | None) -> None:
        self.kills = 0
        self._admin = f"127.0.0.1:{free_port()}"
        self._file, self._log = directory / "specd.toml", directory / "log"
        receivers: list[dict[str, Any]] = [{"name": name, "url": url} for name, url in hooks.items()]
        for one in receivers:
            one |= {"timeout_seconds": 2.0, "group_by": [] if one["name"] == "alone" else ["alertname"]}
            one |= {"group_wait_seconds": 0.2}
        if broker is not None:
            receivers.append({"name": "mqtt", "kind": "mqtt"})
        config = {
            "server": {"listen": "127.0.0.1:0"},
            "admin": {"listen": self._admin},
            "model": {"target": {"path": model}},
            "alerts": {"receivers": receivers},
            "mqtt": {"url": broker, "node": _NODE, "timeout_seconds": 2.0} if broker else {},
            "store": {"directory": str(directory / "state")},
        }
        self._file.write_text(tomli_w.dumps(config))
        self._process: asyncio.subprocess.Process | None = None
        self._chance = Random(len(hooks))  # noqa: S311
        self._http = httpx2.AsyncClient(base_url=f"http://{self._admin}", timeout=20.0)

    @property
    def log(self) -> str:
        """The end of what it has said in all its lives."""
        return self._log.read_text()[-4000:]

    async def start(self) -> None:
        """Returns once it can be told of alerts."""
        with self._log.open("a") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _SERVE, self._file, stdout=log, stderr=log
            )
        await _until(self._answers)

    async def raise_alert(self, number: int) -> str | None:
        """Its fingerprint, once the daemon has said that it is in the outbox; None where it did not come to that."""
        body = {"labels": {"number": str(number)}, "wait_seconds": 0}
        try:
            answer = await self._http.post("/admin/v1/alerts/test", json=body)
        except httpx2.TransportError:
            return None
        return str(answer.raise_for_status().json()["fingerprint"])

    async def kill_soon(self) -> None:
        """With a signal that nobody can catch, at some moment soon."""
        assert self._process is not None, "started before"
        await asyncio.sleep(self._chance.uniform(*_LIFE))
        self._process.kill()
        await self._process.wait()
        self.kills += 1

    async def end(self) -> None:
        """As an operator would."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            await self._process.wait()
        await self._http.aclose()

    async def _answers(self) -> bool:
        assert self._process is not None, "started before"
        assert self._process.returncode is None, f"the daemon ended: {self.log}"
        try:
            return (await self._http.get("/admin/v1/alerts")).status_code == 200
        except httpx2.TransportError:
            return False


async def _until(condition: Any) -> None:
    end = time.monotonic() + _START_SECONDS
    while not await condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.02)
