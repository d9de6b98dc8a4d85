"""From start to end: signals, exit codes, crashes of the engine, and what systemd is told."""

import contextlib
import fcntl
import json
import os
import queue
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import httpx2
import pytest

from tests.daemon.daemon_process import DEADLINE, DaemonProcess, alive, wait_until

LONG = {"prompt": "abc", "max_tokens": 200, "specd": {"k": 0}}
CRASH_TEXT = (
    "the engine stopped (signal 9) while this request ran; it is being restarted, send the request again"
)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def begin(pool: ThreadPoolExecutor, daemon: DaemonProcess, **body: object) -> Future:
    """A request that the engine works on by now."""
    before = daemon.status()["load"]["running"]
    future = pool.submit(daemon.post, "/v1/completions", {**LONG, **body})
    wait_until(lambda: future.done() or daemon.status()["load"]["running"] > before, "the request to run")
    return future


def stream_error(answer: httpx2.Response) -> dict:
    """The error that ends a stream: its last event, with no mark of completion after it."""
    last = answer.text.strip().split("\n\n")[-1]
    return json.loads(last.removeprefix("data: "))["error"]


def test_killed_engine_under_load_costs_its_requests_and_nothing_else(daemons, pool):
    """Test that kill -9 of the engine gives a clear error in both forms, and the next request is served."""
    daemons.engine.behave(step_seconds=0.05)
    daemon = daemons.start().ready()
    whole, streamed = begin(pool, daemon), begin(pool, daemon, stream=True)
    os.kill(daemon.status()["engine"]["pid"], signal.SIGKILL)
    assert whole.result().status_code == 503
    for error in (whole.result().json()["error"], stream_error(streamed.result())):
        assert (error["code"], error["message"]) == ("engine_restarted", CRASH_TEXT)
    assert (
        daemon.post("/v1/completions", {"prompt": "ab", "max_tokens": 2}).json()["choices"][0]["text"] == "ab"
    )
    assert daemon.metric('specd_engine_restarts_total{reason="crash"}') == 1
    assert daemon.status()["engine"]["last_death"] == "crash: signal 9"
    assert daemon.process.poll() is None


def test_hanging_engine_is_replaced(daemons):
    """Test that an engine that falls silent is killed after hang_seconds and requests are served again."""
    daemon = daemons.start("[engine]\nhang_seconds = 0.5").ready()
    lost = daemon.post("/v1/completions", {"prompt": "<hang>"})
    assert (lost.status_code, lost.json()["error"]["code"]) == (503, "engine_restarted")
    assert "for 0.5 s" in lost.json()["error"]["message"]
    assert daemon.post("/v1/completions", {"prompt": "ab", "max_tokens": 2}).status_code == 200
    assert daemon.metric('specd_engine_restarts_total{reason="hang"}') == 1


def test_sigterm_lets_open_requests_end(daemons, pool):
    """Test that after SIGTERM new requests get 503, the open one its whole answer, and the exit code is 0."""
    daemons.engine.behave(step_seconds=0.01)
    daemon = daemons.start().ready()
    open_request = begin(pool, daemon)
    daemon.signal(signal.SIGTERM)
    wait_until(lambda: daemon.get("/ready").status_code == 503, "the daemon to drain")
    refused = daemon.post("/v1/completions", LONG)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    assert open_request.result().json()["usage"]["completion_tokens"] == 200
    assert daemon.wait() == 0


def test_the_drain_is_bounded(daemons, pool):
    """Test that a stream still open after drain_seconds ends with an error event, not with a cut connection."""
    daemons.engine.behave(step_seconds=0.1)
    daemon = daemons.start(server="drain_seconds = 0.5").ready()
    open_request = begin(pool, daemon, stream=True)
    daemon.signal(signal.SIGTERM)
    assert stream_error(open_request.result())["code"] == "shutting_down"
    assert daemon.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(daemons, pool, number):
    """Test that a second signal does not wait for the drain, answers open requests, and takes the engine along."""
    daemons.engine.behave(step_seconds=0.5)
    daemon = daemons.start(server="drain_seconds = 1000").ready()
    engine = daemon.status()["engine"]["pid"]
    open_request = begin(pool, daemon)
    daemon.signal(number)
    wait_until(lambda: daemon.get("/ready").status_code == 503, "the daemon to drain")
    daemon.signal(number)
    assert daemon.wait() == 0
    assert open_request.result().status_code == 503
    assert not alive(engine)


def test_sigterm_while_the_model_loads(daemons, pool):
    """Test that a daemon that is not ready yet ends at once and answers who waits."""
    daemons.engine.behave(load_seconds=1000)
    daemon = daemons.start()
    waiting = pool.submit(daemon.post, "/v1/completions", LONG)
    wait_until(lambda: daemon.status()["load"]["admitted"] == 1, "the request to wait")
    wait_until(lambda: daemon.status()["model"]["target_revision"], "all but the engine to be there")
    daemon.signal(signal.SIGTERM)
    assert waiting.result().json()["error"]["code"] == "shutting_down"
    assert (daemon.wait(), "Traceback" in daemon.log) == (0, False)


def test_health_is_answered_before_the_model_is_there(daemons):
    """Test that the daemon is up while its engine still loads, after less than two seconds of computing: a busy machine
    makes it wait, but not compute.
    """
    daemons.engine.behave(load_seconds=1000)
    daemon = daemons.start()
    assert daemon.get("/health").json() == {"status": "alive"}
    fields = Path(f"/proc/{daemon.process.pid}/stat").read_text().rpartition(")")[2].split()
    assert (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") < 2.0
    assert daemon.get("/ready").status_code == 503


def test_a_killed_daemon_takes_its_engine_along(daemons):
    """Test that the engine ends by itself when the daemon is killed with -9."""
    daemon = daemons.start().ready()
    engine = daemon.status()["engine"]["pid"]
    daemon.signal(signal.SIGKILL)
    daemon.wait()
    wait_until(lambda: not alive(engine), "the engine to end")


def test_what_the_engine_refuses_is_one_sentence(daemons):
    """Test that a refusal at the first start ends the daemon with exit code 2 and no traceback."""
    daemons.engine.behave(refuse="this model has layers that specd cannot run: take another")
    daemon = daemons.start()
    assert daemon.wait() == 2
    assert "this model has layers that specd cannot run: take another" in daemon.log
    assert "Traceback" not in daemon.log


def test_a_model_that_is_not_there(daemons):
    """Test that a wrong path ends the daemon with exit code 2 and a sentence."""
    (daemons.model / "tokenizer.json").unlink()
    daemon = daemons.start()
    assert daemon.wait() == 2
    assert "tokenizer.json" in daemon.log
    assert "Traceback" not in daemon.log


def test_an_engine_that_never_starts(daemons):
    """Test that an engine that crashes again and again while loading ends the daemon with exit code 1."""
    daemons.engine.behave(exit_loading=7)
    daemon = daemons.start()
    assert daemon.wait() == 1
    assert "did not start in 3 tries" in daemon.log
    assert "exit code 7" in daemon.log


def test_a_port_in_use(daemons):
    """Test that a taken port is one sentence with the key, and exit code 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon = daemons.start(admin=f'listen = "127.0.0.1:{port}"')
        assert daemon.wait() == 2
    assert daemon.log == (
        f"admin.listen: cannot listen on 127.0.0.1:{port} (Address already in use):"
        " free it or choose another address\n"
    )


def test_an_admin_listener_open_to_the_world_needs_a_token(daemons):
    """Test that the daemon does not start with an unprotected admin listener beyond loopback."""
    daemon = daemons.start(admin='listen = "0.0.0.0:0"')
    assert daemon.wait() == 2
    assert "set admin.token_file" in daemon.log


class Systemd:
    """The receiving end of sd_notify."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._messages: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while message := self._socket.recv(4096):
            self._messages.put(message.decode())

    def wait_for(self, start: str) -> str:
        """The next message that begins like this; those before it are dropped."""
        return next(message for message in self.messages() if message.startswith(start))

    def messages(self) -> Iterator[str]:
        """One after the other, as they come."""
        while True:
            yield self._messages.get(timeout=DEADLINE)

    def forget(self) -> None:
        """Drop what has come so far."""
        while not self._messages.empty():
            self._messages.get()

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.path)
        self._reader.join()
        self._socket.close()


@pytest.fixture
def systemd(tmp_path) -> Iterator[Systemd]:
    with contextlib.closing(Systemd(tmp_path)) as systemd:
        yield systemd


def test_systemd_is_told_the_truth(daemons, systemd):
    """Test the whole conversation: more time while loading, ready once it serves, reload, watchdog, stopping."""
    daemons.engine.behave(load_seconds=0.5)
    daemon = daemons.start(env={"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "300000"})
    systemd.wait_for("EXTEND_TIMEOUT_USEC=")
    systemd.wait_for("READY=1")
    assert daemon.get("/ready").status_code == 200
    systemd.wait_for("WATCHDOG=1")
    daemon.signal(signal.SIGHUP)
    assert "MONOTONIC_USEC=" in systemd.wait_for("RELOADING=1")
    systemd.wait_for("READY=1")
    daemon.signal(signal.SIGTERM)
    systemd.wait_for("STOPPING=1")
    assert daemon.wait() == 0


def test_a_slow_reload_is_given_time(daemons, systemd):
    """Test that while a reload has another target loaded, systemd is asked for more time, and no longer."""
    daemon = daemons.start(env={"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "300000"}).ready()
    systemd.wait_for("READY=1")
    systemd.forget()
    assert not any(message.startswith("EXTEND") for message in islice(systemd.messages(), 5))
    daemons.engine.behave(load_seconds=0.5)
    daemon.config_file.write_text(
        daemon.config_file.read_text().replace("[model.target]", '[model.target]\nrevision = "b"')
    )
    daemon.signal(signal.SIGHUP)
    systemd.wait_for("RELOADING=1")
    systemd.wait_for("EXTEND_TIMEOUT_USEC=30000000")
    systemd.wait_for("READY=1")
    assert daemon.status()["model"]["target_revision"] == "b"


def test_the_watchdog_starves_with_a_silent_engine(daemons, systemd):
    """Test that a live event loop alone does not feed the watchdog: a hung engine stops it."""
    daemon = daemons.start(env={"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "300000"}).ready()
    systemd.wait_for("READY=1")
    systemd.wait_for("WATCHDOG=1")
    engine = daemon.status()["engine"]["pid"]
    os.kill(engine, signal.SIGSTOP)
    try:
        systemd.forget()
        last_words = list(islice(systemd.messages(), 8))  # a heartbeat may have been under way
        assert "WATCHDOG=1" not in list(islice(systemd.messages(), 5)), last_words
    finally:
        os.kill(engine, signal.SIGCONT)  # stopped, it would not notice the daemon's end
    systemd.wait_for("WATCHDOG=1")


def test_a_refusal_under_systemd_is_not_restarted(daemons, systemd):
    """Test that the exit code is 78 there, which the unit does not answer with a restart."""
    daemons.engine.behave(refuse="no")
    daemon = daemons.start(env={"NOTIFY_SOCKET": systemd.path})
    assert daemon.wait() == 78


def test_what_may_pass_is_tried_again_by_systemd(daemons, systemd, tmp_path):
    """Test that the exit code is 1 there, with a sentence, where an address is taken, memory is short, or the disk of
    the model is not mounted yet.
    """
    mount = tmp_path / "mount"
    mount.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken, (tmp_path / "memory").open("w") as memory:
        fcntl.flock(memory, fcntl.LOCK_EX)
        daemons.engine.behave(alone=memory.name)
        env = {"NOTIFY_SOCKET": systemd.path}
        starts = {
            "cannot listen": daemons.start(server=f'listen = "127.0.0.1:{taken.getsockname()[1]}"', env=env),
            "memory holds one engine": daemons.start(env=env),
            "config.json: missing": daemons.start(f'[model.target]\npath = "{mount}"', model=False, env=env),
        }
        for sentence, daemon in starts.items():
            assert (daemon.wait(), sentence in daemon.log) == (1, True)
