"""`specd status` and `specd top` on a terminal of 80 columns, a real one, and where there is none."""

import contextlib
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Iterator
from fcntl import ioctl

import pytest

from tests.daemon.conftest import Daemons
from tests.daemon.daemon_process import DEADLINE, SPECD, DaemonProcess, wait_until

STYLE = re.compile(rb"\x1b\[[\d;]*m")
COLOURED = re.compile(rb"\x1b\[(\d+;)*(3|4|9|10)\d(;\d+)*m")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory) -> Iterator[DaemonProcess]:
    daemons = Daemons(tmp_path_factory.mktemp("served"))
    daemon = daemons.start().ready()
    for k in (0, 1, 4):
        body = {
            "prompt": "abc",
            "max_tokens": 24,
            "specd": {"k": k, "class": "a-class-of-a-name-that-is-long"},
        }
        assert daemon.post("/v1/completions", body).status_code == 200
    yield daemon
    daemons.close()


def environment(**other: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "COLUMNS", "LINES"}}
    return kept | {"TERM": "xterm-256color"} | other


def command(daemon: DaemonProcess, *words: str) -> list[str]:
    return [str(SPECD), *words, "--admin", daemon.admin.removeprefix("http://")]


def piped(daemon: DaemonProcess, *words: str) -> bytes:
    return subprocess.run(
        command(daemon, *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
        timeout=DEADLINE,
        env=environment(),
    ).stdout


@contextlib.contextmanager
def terminal(daemon: DaemonProcess, *words: str, **env: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command on a terminal of 80 columns and 24 lines, and what reads the terminal."""
    ours, its = pty.openpty()
    ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    streams = {"stdin": its, "stdout": its, "stderr": its}
    with subprocess.Popen(command(daemon, *words), **streams, env=environment(**env)) as process:
        os.close(its)
        yield process, ours
        os.close(ours)


def on_terminal(daemon: DaemonProcess, *words: str, **env: str) -> bytes:
    """All that it writes."""
    with terminal(daemon, *words, **env) as (process, ours):
        written = b"".join(chunks(ours))
        assert process.wait(DEADLINE) == 0, written
    return written


def chunks(terminal: int) -> Iterator[bytes]:
    while select.select([terminal], [], [], DEADLINE)[0]:
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            return
        yield chunk


def lines(written: bytes) -> list[str]:
    return STYLE.sub(b"", written).decode().replace("\r\n", "\n").splitlines()


def test_colours_are_for_terminals(daemon):
    """Test that there are colours on a terminal, none where NO_COLOR is set, and no control byte in a pipe."""
    assert COLOURED.search(on_terminal(daemon, "top", "--once"))
    assert not COLOURED.search(on_terminal(daemon, "top", "--once", NO_COLOR="1"))
    assert b"\x1b" not in piped(daemon, "top")
    assert b"\x1b" not in piped(daemon, "status")


def test_status_fits_into_80_columns(daemon):
    """Test that no line is longer than the terminal is wide, and what matters is said in the first lines."""
    written = on_terminal(daemon, "status")
    assert COLOURED.search(written)
    shown = lines(written)
    assert [line for line in shown if len(line) > 80] == []
    text = "\n".join(shown)
    status = daemon.status()
    assert shown[1] == "serving"
    assert (
        f"target {status['model']['target_revision']}   draft {status['model']['draft_revision']}" in shown[2]
    )
    assert re.search(r"^alerts +none$", text, re.MULTILINE)
    assert status["config"]["hash"] in text
    assert re.search(r"^k +\d\.\d on average of the last \d+ rounds: static \d+%", text, re.MULTILINE)


def test_a_wait_is_said_on_a_terminal(daemon):
    """Test that whoever waits for the daemon is told for what, and that nothing of it is left in a pipe."""
    assert b"the daemon reads its config" in on_terminal(daemon, "reload", "--wait")
    assert piped(daemon, "reload", "--wait") == b"reloaded: nothing changed\n"


def test_every_figure_can_be_asked_for(daemon):
    """Test that --all prints what the daemon says, one figure a line."""
    assert "engine.state" in piped(daemon, "status", "--all").decode()


def test_top_keeps_to_its_terminal(daemon):
    """Test that the live screen overruns no line, and cuts what is too long instead of pushing others off."""
    written = bytearray()
    with terminal(daemon, "top", "--every", "0.1") as (process, ours):
        wait_until(lambda: written.extend(os.read(ours, 1 << 16)) or b"last decisions" in written, "a screen")
        process.terminate()
        written.extend(b"".join(chunks(ours)))
    drawn = lines(re.sub(rb"\x1b\[[?\d;]*[A-Za-z]", b"", bytes(written)))
    assert "a-class-of-a-name…" in "".join(drawn)
    assert [line for line in drawn if len(line) > 80] == []
