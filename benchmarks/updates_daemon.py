"""A daemon for `benchmarks.updates`, and the traffic that it is put under."""

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self

import httpx2

from specd.bench.prompts import prompts

TOKENS: Final = 96
"""Of each answer, at most."""
_CLIENTS: Final = 2
_READY_SECONDS: Final = 600.0
_END_SECONDS: Final = 60.0
_LOOK: Final = 0.5
_PORTS: Final = (18400, 18401)
_CONFIG: Final = """
[server]
listen = "127.0.0.1:{port}"
[admin]
listen = "127.0.0.1:{admin}"
[model.target]
path = {target}
name = "demo"
quantization = "{quantization}"
[model.draft]
kind = ["ngram", "eagle"]
head = {head}
[drift]
on_canary_fail = "{reaction}"
learn_requests = 30
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a daemon is configured with."""

    target: Path
    head: Path
    reaction: str = "alert"
    quantization: str = "none"


@dataclass(slots=True)
class Seen:
    """What clients saw of so many requests."""

    seconds: float = 0.0
    tokens: int = 0
    examined: int = 0
    accepted: int = 0
    alert_requests: int | None = None
    """After so many the alarm went off by itself."""
    alert_seconds: float | None = None
    first: list[int] = field(default_factory=lambda: [0, 0])
    """Position 1: examined and accepted."""

    @property
    def acceptance(self) -> float | None:
        """At position 1."""
        return self.first[1] / self.first[0] if self.first[0] else None

    @property
    def throughput(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"acceptance": self.acceptance, "throughput": self.throughput}


class Daemon:
    """`specd run` in a folder of its own."""

    def __init__(self, folder: Path, setting: Setting, state: Path) -> None:
        """state: what outlives it."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._state, self._setting = folder, state, setting
        self._process: asyncio.subprocess.Process | None = None
        self._http = httpx2.AsyncClient(timeout=None)

    def write(self, setting: Setting) -> None:
        """The config; the daemon is not told."""
        values = {
            "port": _PORTS[0],
            "admin": _PORTS[1],
            "target": json.dumps(str(setting.target)),
            "head": json.dumps(str(setting.head)),
            "reaction": setting.reaction,
            "quantization": setting.quantization,
        }
        (self._folder / "specd.toml").write_text(_CONFIG.format_map(values))

    async def __aenter__(self) -> Self:
        self.write(self._setting)
        config = str(self._folder / "specd.toml")
        command = [str(Path(sys.executable).with_name("specd")), "run", "-c", config]
        environment = os.environ | {"SPECD_STATE_DIR": str(self._state)}
        with (self._folder / "log").open("w") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, env=environment
            )
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await self._until_ready(self._process)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        process = self._process
        assert process is not None, "entered first"
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _END_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
        await self._http.aclose()

    async def _until_ready(self, process: asyncio.subprocess.Process) -> None:
        while not await self._ready():
            if process.returncode is not None:
                raise RuntimeError(f"the daemon ended: {(self._folder / 'log').read_text()[-2000:]}")
            await asyncio.sleep(_LOOK)

    async def _ready(self) -> bool:
        try:
            return (await self._http.get(f"{_url(0)}/ready")).status_code == 200
        except httpx2.TransportError:
            return False

    async def admin(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """A call of the admin API. Raises `RuntimeError` with what it was refused for."""
        answer = await self._http.request(method, _url(1) + path, json=body)
        found: dict[str, Any] = answer.json()
        if answer.status_code != 200:
            raise RuntimeError(f"{path}: {answer.status_code}: {answer.text}")
        return found

    async def judged_at_start(self) -> dict[str, Any]:
        """What the canary says that a daemon replays by itself where another pair served before it."""
        async with asyncio.timeout(_READY_SECONDS):
            while True:
                shown = await self.admin("GET", "/admin/v1/target")
                if shown["canary"] and not shown["doing"]:
                    return shown
                await asyncio.sleep(_LOOK)

    async def asked(self, text: str) -> dict[str, Any]:
        """A chat; the answer with its report."""
        body = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": TOKENS,
            "temperature": 0,
            "specd": {"report": True, "class": "chat"},
        }
        answer = await self._http.post(f"{_url(0)}/v1/chat/completions", json=body)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    async def alarmed(self) -> bool:
        """Whether live traffic, and not the canary, has set the alarm off."""
        alerts = (await self.admin("GET", "/admin/v1/alerts"))["alerts"]
        return any(
            one["state"] == "firing"
            and one["name"].startswith(("SpecdAcceptance", "SpecdSpeculation"))
            and one["labels"].get("kind") != "canary"
            for one in alerts
        )


async def traffic(daemon: Daemon, requests: int, seed: int, *, watch: bool = False) -> Seen:
    """So many chats, two at a time; watch: note when the alarm goes off."""
    seen, began = Seen(), time.monotonic()
    waiting = islice(prompts("chat", seed), requests)
    done = 0

    async def client() -> None:
        nonlocal done
        for prompt in waiting:
            _count(seen, await daemon.asked(prompt.text))
            done += 1
            if watch and seen.alert_requests is None and await daemon.alarmed():
                seen.alert_requests, seen.alert_seconds = done, time.monotonic() - began

    await asyncio.gather(*(client() for _ in range(_CLIENTS)))
    seen.seconds = time.monotonic() - began
    return seen


def _count(seen: Seen, answer: dict[str, Any]) -> None:
    report = answer["specd"]
    seen.tokens += answer["usage"]["completion_tokens"]
    seen.examined += sum(report["examined"])
    seen.accepted += sum(report["accepted"])
    if report["examined"]:
        seen.first[0] += report["examined"][0]
        seen.first[1] += report["accepted"][0]


def _url(which: int) -> str:
    return f"http://127.0.0.1:{_PORTS[which]}"
