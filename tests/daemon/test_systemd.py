"""The unit file, judged by the real systemd-analyze."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from specd.config.schema import Config

UNIT = Path(__file__).parents[2] / "systemd" / "specd.service"

needs_systemd_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="needs systemd-analyze, which is in Debian's package systemd",
)


def settings(name):
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def seconds(name):
    (value,) = settings(name)
    return int(value.removesuffix("s"))


@pytest.fixture
def installable(tmp_path):
    """The unit with a program in place of specd that exists on every machine."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/specd/bin/specd", "/bin/true"))
    return unit


def analyze(*arguments):
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@needs_systemd_analyze
def test_verify_has_nothing_to_say(installable):
    """Test that systemd knows every key and value: verify exits 0 on unknown ones, so output is a fault."""
    verdict = analyze("verify", "--man=no", str(installable))
    assert (verdict.stdout + verdict.stderr, verdict.returncode) == ("", 0)


@needs_systemd_analyze
def test_verify_would_complain(installable):
    """Test that the check above can fail: a misspelt key makes verify print."""
    installable.write_text(installable.read_text().replace("WatchdogSec=", "WatchdogSecs="))
    assert "WatchdogSecs" in analyze("verify", "--man=no", str(installable)).stderr


@needs_systemd_analyze
def test_exposure_is_low(installable):
    """Test that the sandbox scores at most 2.0, as systemd counts what a service could do."""
    report = analyze("security", "--offline=yes", str(installable))
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", report.stdout)
    assert found, report.stderr
    assert float(found[1]) <= 2.0


def test_memory_may_be_written_and_executed():
    """Test that the one hardening key that breaks bf16 on CPU stays out."""
    assert settings("MemoryDenyWriteExecute") == []


def test_stop_outlasts_the_drain():
    """Test that systemd waits longer than open requests may go on, with the defaults of the config."""
    assert seconds("TimeoutStopSec") > Config().server.drain_seconds


def test_watchdog_outlasts_the_supervisor():
    """Test that a hung engine is restarted by the daemon before systemd kills the daemon."""
    assert seconds("WatchdogSec") > Config().engine.hang_seconds
