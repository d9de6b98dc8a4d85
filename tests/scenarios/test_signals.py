"""The end of a daemon with a real engine: SIGTERM early, late, and twice."""

import json
import os
import signal
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.daemon.daemon_process import alive, wait_until
from tests.scenarios.stage import RealDaemon, Stage

LONG = {
    "prompt": "the daemon drafts",
    "max_tokens": 1000,
    "temperature": 0.0,
    "ignore_eos": True,
    "specd": {"speculate": "off"},
}
ENDLESS = LONG | {"max_tokens": 4000}


@pytest.fixture
def pool() -> ThreadPoolExecutor:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def begin(pool: ThreadPoolExecutor, daemon: RealDaemon, count: int = 1, **body: object) -> list[Future]:
    """Requests that the engine works on by now."""
    futures = [pool.submit(daemon.post, "/v1/completions", body) for _ in range(count)]
    wait_until(lambda: daemon.running() == count, f"{count} to run")
    return futures


def last_event(future: Future) -> dict:
    return json.loads(future.result().text.strip().split("\n\n")[-1].removeprefix("data: "))


def test_sigterm_lets_open_requests_end(stage: Stage, pool: ThreadPoolExecutor) -> None:
    """Test that after SIGTERM a new request is refused, the open ones get all their tokens, and nothing is left."""
    with stage.daemon() as daemon:
        engine = daemon.ready().status()["engine"]["pid"]
        (whole,) = begin(pool, daemon, **LONG)
        daemon.signal(signal.SIGTERM)
        wait_until(lambda: daemon.get("/ready").status_code == 503, "the daemon to drain")
        refused = daemon.post("/v1/completions", LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert whole.result().json()["usage"]["completion_tokens"] == 1000
        assert daemon.wait() == 0
        assert not alive(engine)


def test_a_short_drain_ends_streams_with_an_error_event(stage: Stage, pool: ThreadPoolExecutor) -> None:
    """Test that what is open after drain_seconds ends with an error: a whole answer as 503, a stream as an event."""
    with stage.daemon(server={"drain_seconds": 0.3}) as daemon:
        daemon.ready()
        (whole,) = begin(pool, daemon, **ENDLESS)
        stream = pool.submit(daemon.post, "/v1/completions", ENDLESS | {"stream": True})
        wait_until(lambda: daemon.running() == 2, "both to run")
        daemon.signal(signal.SIGTERM)
        assert whole.result().status_code == 503
        assert last_event(stream)["error"]["code"] == "shutting_down"
        assert daemon.wait() == 0


def test_sigterm_twice_ends_at_once(stage: Stage, pool: ThreadPoolExecutor) -> None:
    """Test that the second SIGTERM ends open requests and the engine instead of waiting for an endless drain."""
    with stage.daemon(server={"drain_seconds": 1000}) as daemon:
        engine = daemon.ready().status()["engine"]["pid"]
        (whole,) = begin(pool, daemon, **ENDLESS)
        daemon.signal(signal.SIGTERM)
        wait_until(lambda: daemon.get("/ready").status_code == 503, "the daemon to drain")
        start = time.monotonic()
        daemon.signal(signal.SIGTERM)
        assert whole.result().json()["error"]["code"] == "shutting_down"
        assert daemon.wait() == 0
        assert time.monotonic() - start < 5
        assert not alive(engine)


def test_sigterm_while_the_model_loads(stage: Stage) -> None:
    """Test that a daemon whose engine is loading, and all else is there, ends with 0 and without a traceback."""
    with stage.daemon() as daemon:
        engine = wait_until(lambda: daemon.status()["engine"]["pid"], "the engine to start")
        wait_until(lambda: daemon.status()["model"]["target_revision"], "all but the engine to be there")
        assert not daemon.status()["ready"]
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
        assert daemon.log == ""
        assert not alive(engine)


def test_a_port_in_use(stage: Stage) -> None:
    """Test that a taken port is one sentence with the key, and exit code 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with stage.daemon(server={"listen": address}) as daemon:
            assert daemon.wait() == 2
            assert daemon.log == (
                f"server.listen: cannot listen on {address} (Address already in use):"
                " free it or choose another address\n"
            )


def test_kill_9_of_the_daemon_takes_the_engine_along(stage: Stage, pool: ThreadPoolExecutor) -> None:
    """Test that an engine whose daemon was killed under load ends by itself."""
    with stage.daemon() as daemon:
        engine = daemon.ready().status()["engine"]["pid"]
        (lost,) = begin(pool, daemon, **ENDLESS)
        os.kill(daemon.process.pid, signal.SIGKILL)
        assert lost.exception() is not None
        daemon.wait()
        wait_until(lambda: not alive(engine), "the engine to end")
