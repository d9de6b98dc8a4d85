"""The daemon that the demo drives: one of its own, or one that runs already."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import httpx2

from specd.cli.admin import Admin
from specd.config.sources import ENV_PREFIX, RESERVED
from specd.demo.hook import Hook
from specd.errors import DaemonError, UpdateError
from specd.target.canary import shipped_prompts

_COMMAND: Final = "import sys; from specd.cli import main; sys.exit(main())"
_LAST_LINES: Final = 12
_END_SECONDS: Final = 20.0
_PROMPTS: Final = 24
_CONFIG: Final = """\
[server]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[engine]
kv_mib = 256
max_running = 24

# goodput would find by itself what this host bears; caps by hand show on every host the same.
[policy.load]
table = [[2, 8], [4, 5], [8, 2]]
off_above = 12

# The head alone, so that it is seen what becomes of it.
[model.draft]
kind = "eagle"

# Fewer prompts than usual: a draft that is worth nothing any more shows at once.
[canary]
prompts = {prompts}
tokens = 16
k = 4
[drift]
learn_requests = 30

[[alerts.receivers]]
name = "demo"
url = {url}
secret_file = {secret}
group_by = []
group_wait_seconds = 0
"""


@dataclass(frozen=True, slots=True)
class Daemon:
    """Where it answers."""

    url: str
    admin: httpx2.AsyncClient
    """A client of its admin listener."""

    async def look(self, path: str) -> dict[str, Any]:
        """What there is to see. Raises `DaemonError`."""
        found: dict[str, Any] = (await self._asked("GET", path)).json()
        return found

    async def metrics(self) -> str:
        """In Prometheus' text format. Raises `DaemonError`."""
        return (await self._asked("GET", "/metrics")).text

    async def change(self, path: str, body: Any = None) -> dict[str, Any]:
        """What came of a change of the target, or of a canary. Raises `UpdateError` where it is refused."""
        response = await self._asked("POST", path, body)
        found: dict[str, Any] = response.json()
        if response.status_code != httpx2.codes.OK:
            raise UpdateError(f"the daemon refused {path}: {found['error']['message']}")
        return found

    async def _asked(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        try:
            return await self.admin.request(method, path, json=body)
        except httpx2.TransportError as error:
            raise DaemonError(f"the daemon does not answer {path} any more: {error!r}") from None


@asynccontextmanager
async def running(url: str, admin: Admin) -> AsyncIterator[Daemon]:
    """One that somebody else started. Raises `UserError` where none answers."""
    await asyncio.to_thread(admin.look, "/admin/v1/status")
    async with admin.client() as client:
        yield Daemon(url, client)


@asynccontextmanager
async def fresh(folder: Path, hook: Hook, say: Callable[[str], None]) -> AsyncIterator[Daemon]:
    """One of our own with the demo model, that lives in this folder and tells this webhook of its alerts. Raises
    `DaemonError` where it does not come up.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _COMMAND,
        "run",
        "-c",
        str(_written(folder, hook)),
        stdout=asyncio.subprocess.PIPE,
        stderr=(folder / "log").open("wb"),
        env=_environment(folder),
        start_new_session=True,  # Ctrl-C is ours to hear: the daemon is ended when all is put back
    )
    try:
        url, listen = await _addresses(process, folder, say)
        async with Admin(listen, None).client() as client:
            yield Daemon(url, client)
    finally:
        await _ended(process)


def _written(folder: Path, hook: Hook) -> Path:
    """The config and the files that it names."""
    secret, prompts, config = folder / "secret", folder / "prompts.jsonl", folder / "specd.toml"
    secret.write_text(hook.secret)
    prompts.write_text(
        "".join(json.dumps({"prompt": each}) + "\n" for each in islice(shipped_prompts(), _PROMPTS))
    )
    config.write_text(
        _CONFIG.format(
            url=json.dumps(hook.url), secret=json.dumps(str(secret)), prompts=json.dumps(str(prompts))
        )
    )
    return config


def _environment(folder: Path) -> dict[str, str]:
    """Without what would be part of its config."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ENV_PREFIX) or name in RESERVED
    }
    return ours | {"SPECD_STATE_DIR": str(folder / "state")}


async def _addresses(
    process: asyncio.subprocess.Process, folder: Path, say: Callable[[str], None]
) -> tuple[str, str]:
    """Of its listeners, once it serves: inference as a URL, admin as `admin.listen` names it."""
    assert process.stdout is not None
    found: dict[str, str] = {}
    async for raw in process.stdout:
        line = raw.decode()
        if named := re.match(r"(inference|admin) +(http://(\S+))", line):
            found[named[1]] = named[2] if named[1] == "inference" else named[3]
            say(f"{named[1]} at {named[2]}")
        elif line.startswith("ready"):
            return found["inference"], found["admin"]
    last = (folder / "log").read_text(errors="replace").splitlines()[-_LAST_LINES:]
    raise DaemonError("\n".join(["the daemon did not come up; it said last:", *last]))


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_END_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
