"""`python -m benchmarks.updates`: what real changes of the demo target do to its drafts, and who notices.

One daemon after the other serves the demo model with prompt lookup and the head in the package, under chats that never
cease. Each is then changed in one way, with the alarm alone and with drafting off where the canary says so. Writes
benchmarks/results/updates.json and updates.md; takes half an hour, on a machine that does nothing else.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self

import httpx2

from benchmarks import updates_targets as changed
from benchmarks.updates_page import page
from specd.bench.prompts import prompts
from specd.models.cache import cache_dir
from specd.models.drafts import shipped_heads
from specd.models.resolve import demo_directory

_RESULTS: Final = Path(__file__).parent / "results"
_CLIENTS: Final = 2
_TOKENS: Final = 96
_BEFORE: Final = 60  # requests: detectors learn what is usual from them
_AFTER: Final = 60
_READY_SECONDS: Final = 600.0
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
    """`specd run` in a folder of its own, with a state of its own unless one is shared."""

    def __init__(self, folder: Path, setting: Setting, state: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._state, self._setting = folder, state, setting
        self._ports = (18400, 18401)
        self._process: asyncio.subprocess.Process | None = None
        self.http = httpx2.AsyncClient(timeout=None)

    def write(self, setting: Setting) -> None:
        """The config; the daemon is not told."""
        values = {
            "port": self._ports[0],
            "admin": self._ports[1],
            "target": json.dumps(str(setting.target)),
            "head": json.dumps(str(setting.head)),
            "reaction": setting.reaction,
            "quantization": setting.quantization,
        }
        (self._folder / "specd.toml").write_text(_CONFIG.format_map(values))

    async def __aenter__(self) -> Self:
        self.write(self._setting)
        command = [
            str(Path(sys.executable).with_name("specd")),
            "run",
            "-c",
            str(self._folder / "specd.toml"),
        ]
        environment = os.environ | {"SPECD_STATE_DIR": str(self._state)}
        with (self._folder / "log").open("w") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, env=environment
            )
        async with asyncio.timeout(_READY_SECONDS):
            while not await self._ready():  # noqa: ASYNC110  another process sets no event
                await asyncio.sleep(0.5)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        await self._process.wait()
        await self.http.aclose()

    async def _ready(self) -> bool:
        assert self._process is not None
        if self._process.returncode is not None:
            raise RuntimeError((self._folder / "log").read_text())
        try:
            return (await self.http.get(f"{self._url(0)}/ready")).status_code == 200
        except httpx2.TransportError:
            return False

    def _url(self, which: int) -> str:
        return f"http://127.0.0.1:{self._ports[which]}"

    async def admin(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """A call of the admin API, whatever its status."""
        answer = await self.http.request(method, self._url(1) + path, json=body)
        found: dict[str, Any] = answer.json()
        return found

    async def asked(self, text: str) -> dict[str, Any]:
        """A chat; the answer with its report."""
        body = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": _TOKENS,
            "temperature": 0,
            "specd": {"report": True, "class": "chat"},
        }
        answer = await self.http.post(f"{self._url(0)}/v1/chat/completions", json=body)
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
    """So many chats, some at a time; watch: note when the alarm goes off."""
    seen, began, waiting = Seen(), time.monotonic(), list(islice(prompts("chat", seed), requests))
    done = 0

    async def client() -> None:
        nonlocal done
        while waiting:
            _count(seen, await daemon.asked(waiting.pop(0).text))
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


Change = Callable[[Daemon, Setting], Any]


async def _to_path(daemon: Daemon, setting: Setting) -> dict[str, Any]:
    return await daemon.admin("POST", "/admin/v1/target", {"path": str(setting.target)})


async def _by_reload(daemon: Daemon, setting: Setting) -> dict[str, Any]:
    daemon.write(setting)
    answer = await daemon.admin("POST", "/admin/v1/reload")
    if answer.get("result") != "ok":
        return answer
    shown = await daemon.admin("GET", "/admin/v1/target")
    return {"result": "ok", "canary": shown["canary"], "seconds": None}


@dataclass(frozen=True, slots=True)
class Case:
    """A change, and how it is made."""

    name: str
    after: Setting
    how: Change | None
    """None: the daemon is started anew."""


def cases(demo: Path, head: Path, folder: Path) -> list[Case]:
    """All of them; the targets are made where they are missing."""
    none = Setting(demo, head)
    made: dict[str, Callable[[], Path]] = {
        "resaved": lambda: changed.resaved(demo, folder / "resaved"),
        "template": lambda: changed.retemplated(demo, folder / "template"),
        "tuned": lambda: changed.fine_tuned(demo, folder / "tuned"),
        "random": lambda: changed.random_head(head, folder / "random"),
    }
    paths = {name: folder / name if (folder / name).exists() else make() for name, make in made.items()}
    return [
        Case("the same weights, saved again", Setting(paths["resaved"], head), _to_path),
        Case("int8 linears", Setting(demo, head, quantization="int8"), _by_reload),
        Case("another chat template", Setting(paths["template"], head), _to_path),
        Case("fine-tuned; head of the previous revision", Setting(paths["tuned"], head), _to_path),
        Case("random head, after a restart", Setting(none.target, paths["random"]), None),
    ]


async def measured(case: Case, before: Setting, folder: Path) -> dict[str, Any]:
    """One change, with an alarm alone and with drafting off where the canary says so."""
    found: dict[str, Any] = {"name": case.name}
    for reaction in ("alert", "off"):
        found[reaction] = await _one(case, before, reaction, folder / reaction)
    return found


async def _one(case: Case, before: Setting, reaction: str, folder: Path) -> dict[str, Any]:
    first = Setting(before.target, before.head, reaction, before.quantization)
    after = Setting(case.after.target, case.after.head, reaction, case.after.quantization)
    state = folder / "state"
    async with Daemon(folder, first, state) as daemon:
        await daemon.admin("POST", "/admin/v1/target/canary")
        usual = await traffic(daemon, _BEFORE, seed=1)
        if case.how is not None:
            outcome = await case.how(daemon, after)
            return _row(usual, outcome, await traffic(daemon, _AFTER, seed=2, watch=True))
    async with Daemon(folder, after, state) as daemon:
        outcome = await daemon.admin("POST", "/admin/v1/target/canary")
        return _row(usual, outcome, await traffic(daemon, _AFTER, seed=2, watch=True))


def _row(usual: Seen, outcome: dict[str, Any], later: Seen) -> dict[str, Any]:
    return {"before": usual.document(), "update": outcome, "after": later.document()}


@asynccontextmanager
async def _folder(path: Path | None) -> AsyncIterator[Path]:
    if path is not None:
        yield path
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


async def _run(args: argparse.Namespace) -> None:
    demo, (head, *_) = demo_directory(cache_dir()), shipped_heads()
    results = []
    async with _folder(args.folder) as folder:
        for number, case in enumerate(cases(demo, head, folder)):
            sys.stderr.write(f"{case.name}\n")
            results.append(await measured(case, Setting(demo, head), folder / f"run-{number}"))
            _write(args.json, json.dumps(results, indent=1) + "\n")
    _write(args.page, page(results, _TOKENS))


def _write(file: Path, text: str) -> None:
    file.write_text(text, "utf-8")


def main() -> None:
    """Entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where changed targets are made and kept")
    parser.add_argument("--json", type=Path, default=_RESULTS / "updates.json")
    parser.add_argument("--page", type=Path, default=_RESULTS / "updates.md")
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
