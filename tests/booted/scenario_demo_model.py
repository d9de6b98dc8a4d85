"""The README's "As a systemd service", typed line by line into a booted machine, with the demo model and real engine.

It takes a minute or two, since the engine compiles its kernels within the sandbox: `make test-systemd` runs it.
"""

import re
from collections.abc import Iterator

import pytest

from specd.models.cache import cache_dir
from specd.models.resolve import demo_directory
from tests.booted.machine import PREFIX, SOURCE, Machine
from tests.booted.service import FAKE, REAL, Service, install
from tests.daemon import daemon_process
from tests.daemon.daemon_process import ROOT

QUESTION = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16, "temperature": 0}


@pytest.fixture
def fresh(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A machine with the real program, on which nothing was fetched or configured yet but the demo model."""
    monkeypatch.setattr(daemon_process, "DEADLINE", 300.0)
    install(machine, REAL)
    machine.succeed("rm", "-rf", "/var/cache/specd", "/var/cache/private/specd")
    machine.succeed("mkdir", "-p", "/var/cache/specd/models")
    machine.succeed("cp", "-a", str(demo_directory(cache_dir())), "/var/cache/specd/models/demo")
    yield machine
    install(machine, FAKE)


def typed() -> list[str]:
    """The lines of the README's first block under its heading."""
    text = (ROOT / "README.md").read_text().partition("## As a systemd service")[2]
    block = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    assert block
    return block[1].splitlines()


def test_the_readme_installs_a_service_that_answers(fresh: Machine) -> None:
    """Test that the lines work in their order, less those that download, and that the service answers, reloads, and
    answers likewise with the drop-ins for CPUs and for prompts that must not leave the host."""
    downloads, lines = typed()[:3], typed()[3:]
    assert all(re.search(r"-m venv|/pip install", line) for line in downloads)
    service = Service(fresh)
    done = fresh.run("bash", "-euxc", "\n".join([f"cd {SOURCE}", *lines]))
    assert done.returncode == 0, f"{done.stderr}\n{service.log()}"
    answer = service.post("/v1/chat/completions", json=QUESTION)
    text = answer.json()["choices"][0]["message"]["content"]
    assert text
    assert service.systemctl("reload").returncode == 0
    fresh.succeed(f"{PREFIX}/bin/specd", "status")
    for name in ("cpu", "hardened"):
        service.shipped_drop_in(name)
    assert service.systemctl("restart").returncode == 0, service.log()
    again = service.post("/v1/chat/completions", json=QUESTION)
    assert again.json()["choices"][0]["message"]["content"] == text
    assert service.systemctl("stop").returncode == 0
    assert "Traceback" not in service.log()
