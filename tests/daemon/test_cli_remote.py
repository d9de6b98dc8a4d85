"""`specd reload` and `specd status` against a listener that answers as told, on TCP and on a Unix socket."""

import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from specd.cli import main

CHANGES = [{"key": "policy.k_max", "old": 8, "new": 4, "kind": "hot"}]


@dataclass
class Daemon:
    """What the listener answers, and what it was asked."""

    status: int = 200
    body: Any = field(default_factory=dict)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    sent: bytes = b""
    hold: threading.Event = field(default_factory=threading.Event)

    def handler(daemon) -> type[BaseHTTPRequestHandler]:  # noqa: N805  the handler has its own self
        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                daemon.asked.append((self.command, self.path, self.headers["Authorization"]))
                daemon.sent = self.rfile.read(int(self.headers["Content-Length"] or 0))
                daemon.hold.wait(timeout=30)
                body = json.dumps(daemon.body).encode()
                self.send_response(daemon.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PATCH = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Say nothing."""

            def address_string(self) -> str:
                return "peer"

        return Handler


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class TcpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True


@pytest.fixture
def daemon() -> Daemon:
    answering = Daemon()
    answering.hold.set()
    return answering


@pytest.fixture
def listen(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The listener's address on TCP."""
    monkeypatch.setattr("specd.config.layers.DEFAULT_PATH", tmp_path / "none.toml")
    with TcpServer(("127.0.0.1", 0), daemon.handler()) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        daemon.hold.set()
        server.shutdown()
        thread.join()


def test_reload_prints_the_diff(daemon: Daemon, listen: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Test that with --wait each change is a line, without it their number, and that both exit 0."""
    daemon.body = {"result": "ok", "changes": CHANGES}
    assert main(["reload", "--wait", "--admin", listen]) == 0
    assert capsys.readouterr().out == "policy.k_max: 8 -> 4 (hot)\n"
    assert main(["reload", "--admin", listen]) == 0
    assert capsys.readouterr().out == "reloaded: 1 key changed\n"
    assert daemon.asked == [("POST", "/admin/v1/reload", None)] * 2


def test_partial_reload_tells_what_waits(
    daemon: Daemon, listen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test that --partial is asked for in the body, and that what needs a restart is printed as waiting for it."""
    pending = [{"key": "engine.threads", "old": 0, "new": 2, "kind": "restart"}]
    daemon.body = {"result": "ok", "changes": CHANGES, "pending": pending}
    assert main(["reload", "--wait", "--partial", "--admin", listen]) == 0
    assert capsys.readouterr().out == (
        "policy.k_max: 8 -> 4 (hot)\nengine.threads: 0 -> 2 (restart) waits for a restart\n"
    )
    assert json.loads(daemon.sent) == {"partial": True}


def test_reload_without_changes_says_so(
    daemon: Daemon, listen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test that an unedited config is reported as such."""
    daemon.body = {"result": "ok", "changes": []}
    assert main(["reload", "--wait", "--admin", listen]) == 0
    assert capsys.readouterr().out == "reloaded: nothing changed\n"


def test_set_sends_values_as_toml_reads_them(
    daemon: Daemon, listen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test that numbers, arrays and text without quotes arrive as such, and that changes and refusals are printed."""
    daemon.body = {"result": "ok", "changes": CHANGES}
    pairs = ["policy.k_max=4", "policy.kind=off", "policy.load.table=[[2, 8]]", 'mqtt.user="a=b"']
    assert main(["set", "--admin", listen, *pairs]) == 0
    assert capsys.readouterr().out == "policy.k_max: 8 -> 4 (hot)\n"
    assert daemon.asked == [("PATCH", "/admin/v1/config", None)]
    assert json.loads(daemon.sent) == {
        "policy.k_max": 4,
        "policy.kind": "off",
        "policy.load.table": [[2, 8]],
        "mqtt.user": "a=b",
    }
    assert main(["set", "--admin", listen, "policy.k_max"]) == 2
    assert "policy.k_max is no KEY=VALUE" in capsys.readouterr().err
    daemon.status, daemon.body = 422, {"error": {"message": "set: policy.k_max: must be a whole number"}}
    assert main(["set", "--admin", listen, "policy.k_max=x"]) == 2
    assert capsys.readouterr().err == "set: policy.k_max: must be a whole number\n"


@pytest.mark.parametrize("status", [409, 422])
def test_refused_reload_exits_2_with_the_reason(
    status: int, daemon: Daemon, listen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test that the daemon's refusal is printed in its own words."""
    daemon.status, daemon.body = status, {"error": {"message": "specd.toml: policy.k_maxx: unknown key"}}
    assert main(["reload", "--wait", "--admin", listen]) == 2
    assert capsys.readouterr().err == "specd.toml: policy.k_maxx: unknown key\n"


def test_failing_daemon_is_our_fault(daemon: Daemon, listen: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Test that an answer of 500 exits 1, from reload and from status."""
    daemon.status, daemon.body = 500, {"error": {"message": "boom"}}
    assert main(["reload", "--admin", listen]) == 1
    assert main(["status", "--admin", listen]) == 1
    assert capsys.readouterr().err == "the daemon failed: boom\n" * 2


def test_slow_reload_is_left_to_itself(
    daemon: Daemon, listen: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that a daemon that takes its time is not waited for, unless by --wait, which then tells how it ended."""
    monkeypatch.setattr("specd.cli.reload._PATIENCE", 0.1)
    daemon.hold.clear()
    assert main(["reload", "--admin", listen]) == 0
    assert "still at it" in capsys.readouterr().out
    daemon.body = {"changes": []}
    threading.Timer(0.3, daemon.hold.set).start()
    assert main(["reload", "--wait", "--admin", listen]) == 0
    assert "nothing changed" in capsys.readouterr().out


def test_status_as_lines_and_as_json(daemon: Daemon, listen: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Test that nested values become aligned lines, and that --json passes the answer on."""
    daemon.body = {"engine": {"state": "ready"}, "running": 3}
    assert main(["status", "--admin", listen]) == 0
    assert capsys.readouterr().out == "engine.state  ready\nrunning       3\n"
    assert main(["status", "--json", "--admin", listen]) == 0
    assert json.loads(capsys.readouterr().out) == daemon.body


def test_top_of_a_failing_daemon_is_a_sentence(
    daemon: Daemon, listen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test that `specd top` passes on why there is no screen, and refuses a pause that is none."""
    daemon.status, daemon.body = 500, {"error": {"message": "boom"}}
    assert main(["top", "--once", "--admin", listen]) == 1
    assert capsys.readouterr().err == "the daemon failed: boom\n"
    with pytest.raises(SystemExit):
        main(["top", "--every", "0"])
    assert "'0' is not a number of seconds from 0.1 to 3600" in capsys.readouterr().err


def test_token_comes_from_its_file(daemon: Daemon, listen: str, tmp_path: Path) -> None:
    """Test that admin.token_file is sent as a bearer token, to the address that the config names."""
    (tmp_path / "token").write_text("s3cret\n")
    config = tmp_path / "specd.toml"
    config.write_text(f'[admin]\nlisten = "{listen}"\ntoken_file = "{tmp_path}/token"\n')
    assert main(["status", "-c", str(config)]) == 0
    assert daemon.asked == [("GET", "/admin/v1/status", "Bearer s3cret")]


def test_broken_config_is_still_told_to_the_daemon(daemon: Daemon, listen: str, tmp_path: Path) -> None:
    """Test that reload reaches the daemon though the edited file is faulty, since the daemon must say why."""
    config = tmp_path / "specd.toml"
    config.write_text(f'[admin]\nlisten = "{listen}"\n[policy]\nk_maxx = 1\n')
    daemon.status, daemon.body = 422, {"error": {"message": "no"}}
    assert main(["reload", "--wait", "-c", str(config)]) == 2
    assert daemon.asked


def test_missing_token_is_told(daemon: Daemon, listen: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Test that 401 is answered with the key that names the file, and an absent file with its name."""
    daemon.status = 401
    assert main(["status", "--admin", listen]) == 2
    assert "admin.token_file" in capsys.readouterr().err
    assert main(["status", "--admin", listen, "--set", "admin.token_file=/no/token"]) == 2
    assert "/no/token" in capsys.readouterr().err


def test_something_else_at_the_address_is_told(
    daemon: Daemon, listen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test that an answer that is no JSON object is not taken for specd's."""
    daemon.body = [1]
    assert main(["status", "--admin", listen]) == 2
    assert "is not the admin listener" in capsys.readouterr().err


def test_unix_socket(daemon: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Test that unix:/path reaches a daemon on a socket, and that an absent one is told."""
    path = tmp_path / "admin.sock"
    daemon.body = {"state": "ready"}
    with UnixServer(str(path), daemon.handler()) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        assert main(["status", "--admin", f"unix:{path}"]) == 0
        server.shutdown()
        thread.join()
    assert capsys.readouterr().out == "state  ready\n"
    path.unlink()
    assert main(["status", "--admin", f"unix:{path}"]) == 2
    assert "is specd running?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "words"), [("nonsense", "is no address"), ("127.0.0.1:0", "a port chosen at start")]
)
def test_address_that_cannot_be_asked(address: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Test that an address of no known form, or with port 0, is refused before any call."""
    assert main(["status", "--admin", address]) == 2
    assert words in capsys.readouterr().err


def test_nobody_listening_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Test that a port that nobody has is answered with how to name the right one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    assert main(["reload", "--admin", address]) == 2
    assert f"no specd answers at {address}" in capsys.readouterr().err


def test_an_edit_of_where_the_daemon_is_asked_takes_a_restart(
    daemon: Daemon, tmp_path: Path, listen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test that a reload that cannot be asked for, since the file names another address or token by now, says so."""
    config, token = tmp_path / "specd.toml", tmp_path / "token"
    token.write_text("new\n")
    daemon.status = 401
    for edited in (
        f'listen = "{listen}"\ntoken_file = "{token}"',
        'listen = "127.0.0.1:1"',
        f'listen = "unix:{tmp_path}/admin.sock"',
    ):
        config.write_text(f"[admin]\n{edited}\n")
        assert main(["reload", "--wait", "-c", str(config)]) == 2
        assert "was edited since it started: that takes a restart" in capsys.readouterr().err
