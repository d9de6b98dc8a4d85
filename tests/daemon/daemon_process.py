"""A real daemon process on free ports, and the ways tests look at it."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import httpx2

VLLM = os.environ.get("TEST_WITH_VLLM", "")
"""Interpreter with vLLM, where that is to be the engine of the scenarios: `make test-vllm`."""

DEADLINE = 300.0 if VLLM else 90.0  # of what takes seconds on a machine with nothing else to do
ROOT = Path(__file__).parents[2]
SPECD = Path(sysconfig.get_path("scripts")) / "specd"
"""The command as users type it."""


def wait_until(condition: Callable[[], Any], what: str = "a condition") -> Any:
    """The first true value of `condition`."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"waited {DEADLINE:.0f} s in vain for {what}")


def alive(pid: int) -> bool:
    """A zombie that nobody reaps here counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class DaemonProcess:
    """Started at once; `ready` waits until it serves. Without an `engine` it is `specd run` with the real one, or
    another command that takes a config.
    """

    def __init__(
        self,
        directory: Path,
        config: str,
        engine: Sequence[str] = (),
        *,
        env: dict[str, str] | None = None,
        command: str = "run",
    ) -> None:
        self.config_file = directory / "specd.toml"
        self.config_file.write_text(config)
        self._stdout, self._stderr = directory / "stdout", directory / "stderr"
        fake = [sys.executable, "-m", "tests.daemon.run_daemon", str(self.config_file), *engine]
        environment = os.environ | {
            "SPECD_CACHE_DIR": str(directory / "cache"),
            "SPECD_STATE_DIR": str(directory / "state"),
            "PYTHONPATH": str(ROOT),
        }
        # Made once, since making one reads every certificate there is; without connections that outlive a request.
        self._http = httpx2.Client(timeout=DEADLINE, limits=httpx2.Limits(max_keepalive_connections=0))
        with self._stdout.open("w") as out, self._stderr.open("w") as err:
            self.process = subprocess.Popen(
                fake if engine else [SPECD, command, "-c", self.config_file],
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env=environment | (env or {}),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._http.close()

    @property
    def log(self) -> str:
        return self._stderr.read_text()

    @property
    def said(self) -> str:
        return self._stdout.read_text()

    def _said(self, pattern: str) -> str:
        def found() -> str | None:
            assert self.process.poll() is None, f"the daemon ended: {self.log}"
            match = re.search(pattern, self.said)
            return match and match[1]

        return wait_until(found, pattern)

    @property
    def url(self) -> str:
        return self._said(r"inference +(\S+)\n")

    @property
    def admin(self) -> str:
        return self._said(r"admin +(\S+)\n")

    def ready(self) -> Self:
        self._said(r"(ready, for example)")
        return self

    def post(self, path: str, body: Any = None, **options: Any) -> httpx2.Response:
        return self._http.post(self.url + path, json=body, **options)

    def get(self, path: str) -> httpx2.Response:
        base = (
            self.url
            if path in {"/health", "/ready", "/openapi.json"} or path.startswith("/v1")
            else self.admin
        )
        return self._http.get(base + path)

    def status(self) -> dict[str, Any]:
        return self.get("/admin/v1/status").json()

    def metric(self, line: str) -> float:
        """The value of the series that is written like this."""
        text = self.get("/metrics").text
        return next(float(one.rpartition(" ")[2]) for one in text.splitlines() if one.startswith(line + " "))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code."""
        return self.process.wait(DEADLINE)
