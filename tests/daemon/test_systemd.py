"""The unit files, judged by the real systemd-analyze. `tests/booted` starts them."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from specd.config.schema import Config

UNITS = Path(__file__).parents[2] / "systemd"
UNIT = UNITS / "specd.service"
DROP_INS = sorted(path.stem for path in (UNITS / "specd.service.d").glob("*.conf"))
SERVICES = {"specd.service": UNIT, "specd@small.service": UNITS / "specd@.service"}
COMBINED = [
    *(("specd.service", [name]) for name in DROP_INS),
    *((name, []) for name in SERVICES),
    *((name, DROP_INS) for name in SERVICES),
]
"""Each drop-in alone, and both kinds of unit without any and with all."""

needs_systemd_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="needs systemd-analyze, which is in Debian's package systemd",
)
combined = pytest.mark.parametrize(
    ("service", "drop_ins"), COMBINED, ids=[f"{name}-{'-'.join(more)}" for name, more in COMBINED]
)


def settings(name):
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def seconds(name):
    (value,) = settings(name)
    return int(value.removesuffix("s"))


def installed(directory: Path, service: str, drop_ins: Sequence[str] = ()) -> Path:
    """A unit with its drop-ins, and with a program in place of specd that exists on every machine."""
    unit = directory / service
    unit.write_text(SERVICES[service].read_text().replace("/opt/specd/bin/specd", "/bin/true"))
    shutil.copy(UNITS / "specd.target", directory)
    beside = directory / f"{service}.d"
    beside.mkdir()
    for name in drop_ins:
        shutil.copy(UNITS / "specd.service.d" / f"{name}.conf", beside)
    return unit


def analyze(*arguments):
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@needs_systemd_analyze
@combined
def test_verify_has_nothing_to_say(tmp_path, service, drop_ins):
    """Test that systemd knows every key and value: verify exits 0 on unknown ones, so output is a fault."""
    unit = installed(tmp_path, service, drop_ins)
    verdict = analyze("verify", "--man=no", str(unit), str(tmp_path / "specd.target"))
    assert (verdict.stdout + verdict.stderr, verdict.returncode) == ("", 0)


@needs_systemd_analyze
def test_verify_would_complain(tmp_path):
    """Test that the check above can fail: a misspelt key makes verify print, in a drop-in too."""
    unit = installed(tmp_path, "specd.service", ["cpu"])
    drop_in = tmp_path / "specd.service.d" / "cpu.conf"
    drop_in.write_text(drop_in.read_text().replace("CPUWeight=", "CPUWeights="))
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchdogSecs="))
    complaints = analyze("verify", "--man=no", str(unit)).stderr
    assert "WatchdogSecs" in complaints
    assert "CPUWeights" in complaints


@needs_systemd_analyze
@combined
def test_exposure_is_low(tmp_path, service, drop_ins):
    """Test that the sandbox scores at most 2.0, as systemd counts what a service could do."""
    report = analyze("security", "--offline=yes", str(installed(tmp_path, service, drop_ins)))
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", report.stdout)
    assert found, report.stderr
    assert float(found[1]) <= 2.0


def test_an_instance_is_the_same_service_with_names_of_its_own():
    """Test that specd@.service differs from specd.service in nothing but its config, its directories and its name."""
    own = {
        "/etc/specd/%i.toml": "/etc/specd/specd.toml",
        "specd-%i": "specd",
        " --config /etc/specd/specd.toml": "",
    }
    text = (UNITS / "specd@.service").read_text().replace("decoding, %i", "decoding")
    for name, plain in own.items():
        text = text.replace(name, plain)
    assert text == UNIT.read_text().replace(" --config /etc/specd/specd.toml", "")


def test_memory_may_be_written_and_executed():
    """Test that the one hardening key that breaks bf16 on CPU stays out, of the drop-ins as well."""
    texts = [UNIT.read_text(), *(file.read_text() for file in UNITS.glob("specd.service.d/*"))]
    assert not any(re.search(r"^MemoryDenyWriteExecute=", text, re.MULTILINE) for text in texts)


def test_stop_outlasts_the_drain():
    """Test that systemd waits longer than open requests may go on, with the defaults of the config."""
    assert seconds("TimeoutStopSec") > Config().server.drain_seconds


def test_watchdog_outlasts_the_supervisor():
    """Test that a hung engine is restarted by the daemon before systemd kills the daemon."""
    assert seconds("WatchdogSec") > Config().engine.hang_seconds
