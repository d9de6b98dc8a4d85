"""A daemon for `benchmarks.updates`, and the traffic that it is put under."""

import asyncio
import time
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import httpx2

from benchmarks.running import Daemon
from specd.bench.prompts import prompts

TOKENS: Final = 96
"""Of each answer, at most."""
_CLIENTS: Final = 2
_JUDGED_SECONDS: Final = 600.0
_LOOK: Final = 0.5


@dataclass(frozen=True, slots=True)
class Setting:
    """What a daemon is configured with."""

    target: Path
    head: Path
    reaction: str = "alert"
    quantization: str = "none"

    def sections(self) -> dict[str, Any]:
        """Of the config."""
        return {
            "model": {
                "target": {"path": str(self.target), "name": "demo", "quantization": self.quantization},
                "draft": {"kind": ["ngram", "eagle"], "head": str(self.head)},
            },
            "drift": {"on_canary_fail": self.reaction, "learn_requests": 30},
        }


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


class Served(Daemon):
    """A daemon in a folder of its own."""

    def __init__(self, folder: Path, setting: Setting, state: Path) -> None:
        """state: what outlives it."""
        folder.mkdir(parents=True, exist_ok=True)
        self.setting = setting
        super().__init__(folder, setting.sections(), state=state)
        self.http.timeout = httpx2.Timeout(None)  # an update takes as long as it takes

    async def asked(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """A call of the admin API. Raises `RuntimeError` with what it was refused for."""
        answer = await self.admin(method, path, body)
        found: dict[str, Any] = answer.json()
        if answer.status_code != 200:
            raise RuntimeError(f"{path}: {answer.status_code}: {answer.text}")
        return found

    async def judged_at_start(self) -> dict[str, Any]:
        """What the canary says that a daemon replays by itself where another pair served before it."""
        async with asyncio.timeout(_JUDGED_SECONDS):
            while True:
                shown = await self.asked("GET", "/admin/v1/target")
                if shown["canary"] and not shown["doing"]:
                    return shown
                await asyncio.sleep(_LOOK)

    async def chat(self, text: str) -> dict[str, Any]:
        """A chat; the answer with its report."""
        body = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": TOKENS,
            "temperature": 0,
            "specd": {"report": True, "class": "chat"},
        }
        answer = await self.http.post(f"{self.url}/v1/chat/completions", json=body)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    async def alarmed(self) -> bool:
        """Whether live traffic, and not the canary, has set the alarm off."""
        alerts = (await self.asked("GET", "/admin/v1/alerts"))["alerts"]
        return any(
            one["state"] == "firing"
            and one["name"].startswith(("SpecdAcceptance", "SpecdSpeculation"))
            and one["labels"].get("kind") != "canary"
            for one in alerts
        )


async def traffic(
    daemon: Served, requests: int, seed: int, *, watch: bool = False, until_alarmed: bool = False
) -> Seen:
    """So many chats, two at a time; watch: note when the alarm goes off, and end there if so asked."""
    seen, began = Seen(), time.monotonic()
    waiting = islice(prompts("chat", seed), requests)
    done = 0

    async def client() -> None:
        nonlocal done
        for prompt in waiting:
            if until_alarmed and seen.alert_requests is not None:
                break
            _count(seen, await daemon.chat(prompt.text))
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
