"""A daemon in a process of its own, as benchmarks look at it: from outside."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self

import httpx2
import tomli_w

from benchmarks.ports import free_port

_READY_SECONDS: Final = 600.0
_END_SECONDS: Final = 60.0
_SERVE: Final = """
import json, os, sys
from pathlib import Path
from specd.config.layers import load
cpus, looks, config, *engine = sys.argv[1:]
if cpus:
    os.sched_setaffinity(0, {int(cpus)})
if looks:
    from benchmarks.inside import listen
    listen(Path(config).parent, looks)
from specd.daemon import serve
sys.exit(serve(load(Path(config), env={}), engine_command=engine))
"""

_LOADED: Final = 900.0
"""Seconds in which a target is loaded, checked and served, on a host that has other things to do."""


class Daemon:
    """Runs within the context. The engine is the real one unless another command is given."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        *,
        engine: Sequence[str] = (),
        cpu: int | None = None,
        state: Path | None = None,
        looks: Literal["", "plain", "traced", "sampled"] = "",
        serves: bool = True,
    ) -> None:
        """config: without addresses, which are chosen. cpu: the only one that it may run on, and its engine with it.
        state: what outlives it; in the folder unless given. looks: whether and how `benchmarks.inside` answers.
        serves: whether it is ever ready to; one without an engine is not.
        """
        self.folder = folder
        self._state = folder / "state" if state is None else state
        self._engine = engine
        self._cpu = "" if cpu is None else str(cpu)
        self._looks = looks
        self._serves = serves
        self._ports = (free_port(), free_port())
        self._config = dict(config)
        self.log = folder / "log"
        self.http = httpx2.AsyncClient(timeout=httpx2.Timeout(120.0))
        self.alive_after = self.ready_after = 0.0
        """Seconds from the start of its process to the first good answer of /health, and of /ready."""
        self._process: asyncio.subprocess.Process | None = None

    @property
    def port(self) -> int:
        """Of the inference listener, on 127.0.0.1."""
        return self._ports[0]

    @property
    def url(self) -> str:
        """Of the inference listener."""
        return f"http://127.0.0.1:{self._ports[0]}"

    @property
    def pid(self) -> int:
        """Of the daemon."""
        assert self._process is not None, "it runs"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        assert self._process is not None, "it was started"
        return self._process.returncode

    def write(self, sections: Mapping[str, Any]) -> None:
        """The config as it was at first, with these sections in the place of its own. The daemon is not told."""
        listen = [f"127.0.0.1:{port}" for port in self._ports]
        config = {**self._config, **sections}
        config["server"] = {**config.get("server", {}), "listen": listen[0]}
        config["admin"] = {"listen": listen[1]}
        self.write_text(tomli_w.dumps(config))

    def write_text(self, text: str) -> None:
        """Whatever it is."""
        (self.folder / "specd.toml").write_text(text)

    def signal(self, number: signal.Signals) -> None:
        """To the daemon alone."""
        assert self._process is not None, "it runs"
        self._process.send_signal(number)

    async def admin(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        """A call of the admin listener, whatever its status."""
        url = f"http://127.0.0.1:{self._ports[1]}{path}"
        return await self.http.request(method, url, json=body, timeout=_LOADED)

    async def status(self) -> dict[str, Any]:
        """How everything stands."""
        found: dict[str, Any] = (await self.admin("GET", "/admin/v1/status")).raise_for_status().json()
        return found

    async def __aenter__(self) -> Self:
        self.write({})
        config = str(self.folder / "specd.toml")
        command = [sys.executable, "-c", _SERVE, self._cpu, self._looks, config, *self._engine]
        environment = os.environ | {"SPECD_STATE_DIR": str(self._state)}
        began = time.monotonic()
        with self.log.open("w") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, env=environment
            )
        try:
            await self._until("/health")
            self.alive_after = time.monotonic() - began
            if self._serves:
                await self._until("/ready")
            self.ready_after = time.monotonic() - began
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        assert self._process is not None, "it was started"
        if self.exit_code is None:
            self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), _END_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _until(self, path: str) -> None:
        end = time.monotonic() + _READY_SECONDS
        while not await self._is_well(path):
            assert self.exit_code is None, f"the daemon ended: {self.log.read_text()[-2000:]}"
            assert time.monotonic() < end, f"{path} was not answered well"
            await asyncio.sleep(0.02)

    async def _is_well(self, path: str) -> bool:
        try:
            return (await self.http.get(self.url + path)).status_code == httpx2.codes.OK
        except httpx2.TransportError:
            return False
