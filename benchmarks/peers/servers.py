"""The servers that are measured. All are started once; while one is measured the others are stopped, for an idle engine
may spin, and two OpenMP programs at once slow each other many times over.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx2

from benchmarks.peers import environments
from benchmarks.ports import free_port
from engine.processor import quick_format

_START_SECONDS: Final = 600.0
_VLLM: Final[Mapping[str, str]] = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # with its default one core computes and the other polls
}
_VLLM_NGRAM: Final = (
    '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 5, "prompt_lookup_min": 2}'
)
_LLAMA: Final = "-t 2 -np 32 -c 32768 -fa on --no-webui --cache-ram 0 --host 127.0.0.1"


@dataclass(frozen=True)
class Contender:
    """A server, how to start it."""

    name: str
    command: tuple[str, ...]  # {port} is filled in
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: str = "health"
    levels: tuple[int, ...] = (1, 4, 16, 32)  # numbers of clients that it is measured with


def ours(name: str, folder: Path, policy: str = "") -> Contender:
    """The daemon; policy: the [policy] section's lines, none for the default."""
    config = folder / f"{name.replace(' ', '-')}.toml"
    # It is stopped between its turns, which a watch over hangs takes for one, and asks no canary in them.
    config.write_text(
        f'[admin]\nlisten = "unix:{folder / name.replace(" ", "-")}.sock"\n'
        f"[engine]\nhang_seconds = 86400.0\n[canary]\nenabled = false\n[policy]\n{policy}\n"
    )
    specd = str(Path(sys.executable).with_name("specd"))
    return Contender(
        name,
        (specd, "run", "-c", str(config)),
        {"SPECD_SERVER__LISTEN": "127.0.0.1:{port}"},
        ready="ready",
    )


def vllm(name: str, folder: Path, model: Path, *, ngram: bool) -> Contender:
    """vllm-cpu's OpenAI server. Raises NoPeerError."""
    python = environments.vllm(folder)
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += [
        "--dtype",
        quick_format(),
        "--served-model-name",
        "demo",
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
    ]
    if ngram:
        command += ["--speculative-config", _VLLM_NGRAM]
    return Contender(name, tuple(command), _VLLM, levels=(1,) if ngram else (1, 4, 16, 32))


def llama(name: str, folder: Path, model: Path, options: str = "") -> Contender:
    """llama.cpp's server. Raises NoPeerError."""
    server, gguf = environments.llama(folder, model)
    command = f"{server} -m {gguf} {_LLAMA} {options} --port {{port}}"
    return Contender(name, tuple(command.split()))


class Running:
    """A started server in a process group of its own."""

    def __init__(self, contender: Contender, port: int = 0) -> None:
        """port: 0 takes a free one."""
        self.contender = contender
        port = port or free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the server
        command = [part.replace("{port}", str(port)) for part in contender.command]
        own = {key: value.replace("{port}", str(port)) for key, value in contender.environment.items()}
        self._process = subprocess.Popen(  # noqa: S603  our own command line
            command,
            env=os.environ | own,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=tempfile.gettempdir(),  # vLLM would import what lies in ours
        )

    def wait_ready(self) -> None:
        """Until it answers. Raises RuntimeError with the end of its log."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(httpx2.HTTPError):
                if httpx2.get(f"{self.url}/{self.contender.ready}").is_success:
                    return
            time.sleep(0.5)
        raise RuntimeError(f"{self.contender.name} did not start: …{self._last_words()}")

    def pause(self) -> None:
        """Take it off the processor."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Its turn."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill it with all of its processes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _last_words(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-1500:]


@contextmanager
def started(contenders: list[Contender]) -> Iterator[list[Running]]:
    """All of them, ready and paused; killed at the end."""
    running: list[Running] = []
    try:
        for contender in contenders:
            server = Running(contender)
            running.append(server)
            server.wait_ready()
            server.pause()
        yield running
    finally:
        for server in running:
            server.end()


def scratch() -> Path:
    """A folder for configs and sockets, short enough for a socket's path."""
    folder = Path(tempfile.gettempdir()) / "specd-peers"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder
