"""Trouble of `benchmarks.soak`: reloads good and bad, updates of the target, engines that are killed or stand still."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any, Final

import httpx2

from benchmarks.running import Daemon

_STORM_PAUSE: Final = 0.1
_BAD: Final = (
    "[policy",
    "[policy]\nk_mx = 3\n",
    "[policy]\nk_max = 'many'\n",
    "[policy]\nkind = 'static'\nk_max = 1\nstatic_k = 2\n",
    "\xff\xfe",
    "",
)
"""No valid config of this daemon, the empty one included: it has other addresses."""


class Trouble:
    """Everything that is done to a daemon while it serves. Remembers when."""

    def __init__(self, daemon: Daemon, seed: int, *, every: float) -> None:
        """every: seconds between two kills, and between two updates, on average."""
        self.counts: Counter[str] = Counter()
        self.moments: list[tuple[str, float]] = []
        """What was done when, on the monotonic clock; reloads apart."""
        self.refusals: Counter[str] = Counter()
        """Why the target was not changed, in the daemon's words."""
        self.broken: list[str] = []
        """Where the daemon did not do as it should have."""
        self.struck: int | None = None
        """The engine that was killed or stopped last."""
        self.dropped: Counter[str] = Counter()
        """Requests that ended in errors while nothing but reloads went on, by code."""
        self._daemon = daemon
        self._chance = Random(seed)  # noqa: S311
        self._every = every
        self._revision = 0
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Until `cease`."""
        doings = ((self.reload, 3.0), (self.kill, self._every), (self.update, self._every))
        self._tasks = [asyncio.create_task(self._again(do, pause)) for do, pause in doings]

    async def cease(self) -> None:
        """No more of it, and the config as it was at first."""
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        self.broken += [repr(fault) for fault in ended if isinstance(fault, Exception)]
        await self._reload_at_first()

    async def storm(self, seconds: float) -> None:
        """A reload every tenth of a second, every third of which is to be refused. In the end all is as it was."""
        before = await self._standing()
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            number += 1
            pause = asyncio.create_task(asyncio.sleep(_STORM_PAUSE))
            if number % 3:
                self._daemon.write({"policy": {"k_max": 1 + number % 8}})
            else:
                self._daemon.write_text(_BAD[number // 3 % len(_BAD)])
            answer = await self._daemon.admin("POST", "/admin/v1/reload")
            if number % 3:
                self._expect(answer, httpx2.codes.OK)
                self._expect_changed(answer, "policy.k_max")
            else:
                self._expect(answer, httpx2.codes.UNPROCESSABLE_ENTITY, httpx2.codes.CONFLICT)
            self.counts["reloads"] += 1
            await pause
        await self._reload_at_first()
        if (after := await self._standing()) != before:
            self.broken.append(f"a storm of reloads has changed {before} to {after}")

    async def reload(self) -> None:
        """One of any sort, by any way. What is left to the watch is to be seen within seconds, or overtaken."""
        kind, way = self._chance.choice(("good", "good", "bad", "restart", "partial")), self._chance.random()
        body: dict[str, Any] = {"partial": kind == "partial"}
        if kind == "bad":
            self._daemon.write_text(self._chance.choice(_BAD))
        else:
            sections: dict[str, Any] = {"policy": {"k_max": self._chance.randint(0, 12)}}
            restarts = (
                {} if kind == "good" else {"store": {"directory": str(self._daemon.folder / "elsewhere")}}
            )
            self._daemon.write(sections | restarts)
        if way < 0.3:
            self._daemon.signal(signal.SIGHUP)
        elif way < 0.8:
            good = kind in {"good", "partial"}
            wanted = (
                (httpx2.codes.OK,) if good else (httpx2.codes.UNPROCESSABLE_ENTITY, httpx2.codes.CONFLICT)
            )
            self._expect(await self._daemon.admin("POST", "/admin/v1/reload", body), *wanted)
        self.counts["reloads"] += 1

    async def kill(self) -> None:
        """The engine that serves ends, or stands still until somebody ends it."""
        pid = (await self._daemon.status())["engine"]["pid"]
        how = self._chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, how)
                self.struck = pid
            self._note("engine killed" if how is signal.SIGKILL else "engine stopped")

    async def update(self) -> None:
        """Another revision of the target, the previous one, or one that there is not."""
        how = self._chance.random()
        if how < 0.2:
            answer = await self._daemon.admin("POST", "/admin/v1/target", {"path": "/nowhere"})
            wanted = {httpx2.codes.UNPROCESSABLE_ENTITY, httpx2.codes.CONFLICT}
        elif how < 0.4:
            answer = await self._daemon.admin("POST", "/admin/v1/target/rollback")
            wanted = {httpx2.codes.OK, httpx2.codes.UNPROCESSABLE_ENTITY, httpx2.codes.CONFLICT}
        else:
            self._revision += 1
            path = (await self._daemon.admin("GET", "/admin/v1/target")).json()["current"]["path"]
            body = {"path": path, "revision": f"r{self._revision}"}
            answer = await self._daemon.admin("POST", "/admin/v1/target", body)
            wanted = {httpx2.codes.OK, httpx2.codes.UNPROCESSABLE_ENTITY, httpx2.codes.CONFLICT}
        self._expect(answer, *wanted)
        if answer.status_code == httpx2.codes.OK:
            self._note("target changed")
        else:
            self._note("change refused")
            self.refusals[answer.json()["error"]["message"]] += 1

    async def _standing(self) -> tuple[Any, Any]:
        """The config in force, and the engine."""
        config, engine = await self._daemon.admin("GET", "/admin/v1/config"), await self._daemon.status()
        return config.json(), engine["engine"]["pid"]

    async def _reload_at_first(self) -> None:
        self._daemon.write({})
        self._expect(await self._daemon.admin("POST", "/admin/v1/reload"), httpx2.codes.OK)

    async def _again(self, do: Callable[[], Coroutine[Any, Any, None]], pause: float) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(0.5, 1.5) * pause)
            try:
                await do()
            except httpx2.TransportError as error:
                self.broken.append(f"{do.__name__}: {type(error).__name__}: {error}")

    def _expect_changed(self, answer: httpx2.Response, key: str) -> None:
        """This key, or nothing."""
        others = [one for one in answer.json().get("changes", ()) if one["key"] != key]
        if others:
            self.broken.append(f"a reload changed {others}")

    def _note(self, what: str) -> None:
        self.counts[what] += 1
        self.moments.append((what, time.monotonic()))

    def _expect(self, answer: httpx2.Response, *statuses: int) -> None:
        if answer.status_code not in statuses:
            self.broken.append(
                f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text}"
            )
