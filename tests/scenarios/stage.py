"""Real daemons with real engines, and the ways a scenario looks at them: from outside only."""

import contextlib
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import tomli_w

from specd.config.layers import merge
from tests.daemon.daemon_process import DEADLINE, SPECD, VLLM, DaemonProcess, wait_until

Table = dict[str, Any]

ON_VLLM: Table = {
    "backend": "vllm",
    "vllm": {"python": VLLM, "enforce_eager": True, "options": {"block_size": 32}},
}
"""Of `[engine]`. Compiling takes a minute for each daemon; prompts here are too short for the usual blocks."""


class RealDaemon(DaemonProcess):
    """`specd run -c FILE`, where the file can be rewritten."""

    def __init__(self, directory: Path, config: Table, env: dict[str, str]) -> None:
        self._config = config
        super().__init__(directory, tomli_w.dumps(config), env=env)

    def write(self, **sections: Table) -> None:
        """The config file as it was at first, but for these keys. The daemon is not told."""
        self.config_file.write_text(tomli_w.dumps(merge([self._config, sections])))

    def reload(self) -> subprocess.CompletedProcess[str]:
        """`specd reload --wait`."""
        command = [SPECD, "reload", "--wait", "--admin", self.admin.removeprefix("http://")]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE)

    def reloads(self) -> Table:
        """What the daemon answers when it is asked to reload, and does."""
        answer = self._http.post(f"{self.admin}/admin/v1/reload")
        assert answer.status_code == 200, answer.text
        found: Table = answer.json()
        return found

    def client(self) -> openai.OpenAI:
        """The official client, which is not to hide a failure by trying again."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=DEADLINE)

    def metrics(self) -> dict[str, float]:
        """Every series of `/metrics` by its name with labels."""
        lines = [line for line in self.get("/metrics").text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def running(self) -> int:
        """Requests in the engine, as of its last step."""
        return self.status()["load"]["running"]

    def comes_to_rest(self) -> None:
        """Wait until nothing runs or waits; then no block of the KV pool may be in use."""
        wait_until(lambda: _rests(self.status()), f"a daemon at rest: {self.status()}")
        metrics = self.metrics()
        assert metrics['specd_kv_blocks{state="used"}'] == 0
        assert metrics["specd_running_requests"] == metrics["specd_waiting_requests"] == 0


def _rests(status: Table) -> bool:
    load, kv = status["load"], status["kv"]
    return kv is not None and not (kv["used"] or load["running"] or load["waiting"] or load["admitted"])


class Stage:
    """Where daemons run that serve a tiny model."""

    def __init__(self, directory: Path, model: Path, kernels: Path) -> None:
        """kernels: where they are compiled already."""
        self._directory = directory
        cache = directory / "cache"
        cache.mkdir()
        (cache / "kernels").symlink_to(kernels)
        self._defaults: Table = {
            "server": {"listen": "127.0.0.1:0"},
            "admin": {"listen": "127.0.0.1:0"},
            "reload": {"watch": False},  # a scenario says when
            "canary": {"enabled": False},  # it asks in quiet moments, and scenarios look for rest
            "engine": {"threads": 1, "kv_mib": 64, **(ON_VLLM if VLLM else {})},
            "model": {"target": {"path": str(model), "name": "tiny", "dtype": "float32"}},
        }
        # Two OpenMP programs at once on a small host spin against each other.
        self._env = {"OMP_NUM_THREADS": "1", "SPECD_CACHE_DIR": str(cache)}
        self.daemons: list[RealDaemon] = []

    @contextlib.contextmanager
    def daemon(self, env: dict[str, str] | None = None, **sections: Table) -> Iterator[RealDaemon]:
        """A daemon that runs within the context, unless the scenario ends it. It must end well, and quietly."""
        directory = Path(tempfile.mkdtemp(dir=self._directory))
        config = merge([self._defaults, sections])
        with RealDaemon(directory, config, self._env | (env or {})) as daemon:
            self.daemons.append(daemon)
            yield daemon
            if daemon.process.poll() is None:
                daemon.signal(signal.SIGTERM)
                assert daemon.wait() == 0, daemon.log
            assert "Traceback" not in daemon.log, daemon.log
        self.daemons.remove(daemon)

    def check(self) -> None:
        """Whatever a scenario did, it left nothing behind in a daemon that still runs."""
        for daemon in self.daemons:
            if daemon.process.poll() is None:
                daemon.comes_to_rest()
