"""specd as a service of a booted machine: its files, what systemctl does with it, and how a client sees it."""

import json
import os
import signal
from collections.abc import Sequence
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

import httpx2
import tomli_w

from tests.booted.machine import PREFIX, SOURCE, Machine, now
from tests.daemon import daemon_process
from tests.daemon.conftest import write_served_model
from tests.daemon.daemon_process import ROOT, wait_until

MODEL: Final = "/opt/model"
MANNERS: Final = "/opt/manners.json"
DROP_INS: Final = ROOT / "systemd" / "specd.service.d"

REAL: Final = f"#!{PREFIX}/bin/python\nimport sys\nfrom specd.cli import main\nsys.exit(main())\n"
"""What pip makes of the entry point."""

FAKE: Final = f"""#!{PREFIX}/bin/python
import sys
from functools import partial
from specd.cli import main

if "run" in sys.argv[1:2]:
    from specd import daemon

    engine = [sys.executable, "{SOURCE}/tests/daemon/fake_engine.py", "--manners", "{MANNERS}"]
    daemon.serve = partial(daemon.serve, engine_command=engine)
sys.exit(main())
"""
"""The same with the fake engine in the place of the real one."""


class Service:
    """One unit. Its files are those of the repository; what a test adds are drop-ins and the config."""

    def __init__(self, machine: Machine, name: str = "specd", port: int = 8000) -> None:
        self.machine = machine
        self.name = name
        self.config_file = f"/etc/specd/{name.rpartition('@')[2]}.toml"
        self._ports = port, port + 1
        self._began = now()
        # Connections that outlived a daemon would be of no use to the next one.
        self._http = httpx2.Client(
            trust_env=False, verify=False, limits=httpx2.Limits(max_keepalive_connections=0)
        )

    def configure(self, **sections: Any) -> None:
        """The config file."""
        server, admin = (f"127.0.0.1:{port}" for port in self._ports)
        tables: dict[str, dict[str, Any]] = {
            "server": {"listen": server},
            "admin": {"listen": admin},
            "model": {"target": {"path": MODEL}},
        }
        for name, keys in sections.items():
            tables[name] = tables.get(name, {}) | keys
        self.machine.write(self.config_file, tomli_w.dumps(tables))

    def drop_in(self, name: str, text: str) -> None:
        """A file beside the unit that changes it."""
        unit = self.name.rpartition("@")[0] + "@" if "@" in self.name else self.name
        self.machine.write(f"/etc/systemd/system/{unit}.service.d/{name}.conf", text)
        self.machine.succeed("systemctl", "daemon-reload")

    def shipped_drop_in(self, name: str) -> None:
        """One out of the repository, as it is."""
        self.drop_in(name, (DROP_INS / f"{name}.conf").read_text())

    def start(self) -> None:
        """Returns when systemd was told that it is ready."""
        done = self.systemctl("start")
        assert done.returncode == 0, f"{done.stderr}{self.log()}"

    def systemctl(self, verb: str, *options: str) -> Any:
        """`systemctl VERB`, whatever comes of it."""
        return self.machine.run("systemctl", verb, *options, f"{self.name}.service")

    def show(self, name: str) -> str:
        """A property as systemctl shows it."""
        return self.systemctl("show", "--value", f"--property={name}").stdout.strip()

    def log(self, *options: str) -> str:
        """What journal and systemd hold of it, of this test."""
        self.machine.run("journalctl", "--sync")
        which = (f"--unit={self.name}.service", f"--since={self._began}", *options)
        return self.machine.succeed("journalctl", *which, "--output=cat", "--no-pager")

    @property
    def main(self) -> int:
        """The daemon's process, as numbered inside."""
        return int(self.show("MainPID"))

    def kill(self, pid: int, number: signal.Signals) -> None:
        """A process by its number inside."""
        self.machine.succeed("kill", f"-{int(number)}", str(pid))

    def lives(self, pid: int) -> bool:
        """Whether there is such a process inside."""
        return self.machine.at(f"/proc/{pid}").exists()

    def ask(self, method: str, path: str, **options: Any) -> "Future[httpx2.Response]":
        """A request from inside."""
        port = self._ports[path.startswith(("/admin", "/metrics"))]
        options.setdefault("timeout", daemon_process.DEADLINE)
        return self.machine.inside(self._http.request, method, f"http://127.0.0.1:{port}{path}", **options)

    def get(self, path: str, **options: Any) -> httpx2.Response:
        """The answer."""
        return self.ask("GET", path, **options).result()

    def post(self, path: str, **options: Any) -> httpx2.Response:
        """The answer."""
        return self.ask("POST", path, **options).result()

    def answers(self) -> bool:
        """Whether there is somebody at the door."""
        try:
            return self.get("/health").status_code == 200
        except httpx2.ConnectError:
            return False

    def status(self) -> dict[str, Any]:
        """What `specd status` shows."""
        found: dict[str, Any] = self.get("/admin/v1/status").json()
        return found

    def says(self, prompt: str, **options: Any) -> str:
        """What the fake engine echoes."""
        answer = self.post("/v1/completions", json={"prompt": prompt, "max_tokens": len(prompt)}, **options)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["text"]
        return text

    def series(self, name: str) -> dict[str, str]:
        """Those of a metric, as `/metrics` writes them."""
        lines = self.get("/metrics").text.splitlines()
        return dict(line.rsplit(" ", 1) for line in lines if line.startswith(name) and "_created" not in line)


def install(machine: Machine, program: str) -> None:
    """A program as `specd`, and a model and manners for the fake engine."""
    machine.write(f"{PREFIX}/bin/specd", program, 0o755)
    write_served_model(machine.at(MODEL))
    behave(machine)


def behave(machine: Machine, **manners: object) -> None:
    """How the fake engine behaves from its next start on."""
    machine.write(MANNERS, json.dumps(manners))


def clear(machine: Machine, units: Sequence[str]) -> None:
    """Nothing runs and nothing is left of earlier tests."""
    services = [f"{name}.service" for name in units]
    machine.run("systemctl", "stop", *services, "specd.target")
    machine.run("systemctl", "reset-failed")
    left = ("/etc/specd", "/etc/systemd/system/*.service.d", "/var/lib/specd*", "/var/lib/private/specd*")
    machine.succeed("sh", "-c", f"rm -rf {' '.join(left)}")
    machine.succeed("systemctl", "daemon-reload")
    behave(machine)


class Hook(HTTPServer):
    """A receiver of webhooks inside the machine."""

    def __init__(self, machine: Machine, port: int) -> None:
        self.received: list[tuple[dict[str, str], bytes]] = []
        machine.inside(super().__init__, ("127.0.0.1", port), _Take).result()
        self._thread = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def first(self) -> tuple[dict[str, str], bytes]:
        """Headers and body of what came first."""
        wait_until(lambda: self.received, "a webhook")
        return self.received[0]

    def close(self) -> None:
        """No more."""
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Take(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.received.append((headers, self.rfile.read(int(headers["content-length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def owner(path: Path) -> int:
    """Its user's number."""
    return os.lstat(path).st_uid
