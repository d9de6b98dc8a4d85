"""The engine process is killed under load."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.daemon.daemon_process import wait_until
from tests.scenarios.stage import RealDaemon, Stage

RUNNING = 2
ASKED = 8
RESTARTS = 'specd_engine_restarts_total{reason="crash"}'
SENTENCE = (
    "the engine stopped (signal 9) while this request ran; it is being restarted, send the request again"
)


@pytest.fixture(scope="module")
def daemon(stage: Stage) -> Iterator[RealDaemon]:
    with stage.daemon(engine={"max_running": RUNNING}) as daemon:
        yield daemon.ready()


def ask(client: openai.OpenAI, *, stream: bool, tokens: int = 300) -> int:
    """Have this many tokens generated; how many events or tokens came."""
    answer = client.completions.create(
        model="tiny",
        prompt="the daemon drafts",
        max_tokens=tokens,
        temperature=0,
        stream=stream,
        extra_body={"ignore_eos": True, "specd": {"speculate": "off"}},
    )
    return len(list(answer)) if stream else answer.usage.completion_tokens


def full(load: dict[str, Any]) -> bool:
    return (load["running"], load["waiting"]) == (RUNNING, ASKED - RUNNING)


def test_kill_9_under_load(daemon: RealDaemon) -> None:
    """Test that what ran gets a clear error and what waited is served, in the engine or before it, that the daemon
    stays up meanwhile, and that the engine comes back and is counted."""
    with daemon.client() as client, ThreadPoolExecutor(ASKED) as pool:
        asked = [pool.submit(ask, client, stream=bool(number % 2)) for number in range(ASKED)]
        wait_until(lambda: full(daemon.status()["load"]), "a full house")
        first = daemon.status()["engine"]["pid"]
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: daemon.metrics()[RESTARTS] == 1, "the restart to be counted")
        assert daemon.get("/health").status_code == 200
        assert daemon.get("/ready").status_code == 503
        assert "signal 9" in daemon.get("/ready").text
        errors = [error for future in asked if (error := future.exception())]
        assert 1 <= len(errors) <= RUNNING
        assert all(SENTENCE in str(error) for error in errors)
        for number, future in enumerate(asked):
            if error := future.exception():  # a stream that has begun can only say so in an event
                kinds = (openai.InternalServerError, openai.APIError)[: 1 + number % 2]
                assert type(error) in kinds, f"request {number}: {error!r}"
        assert all(future.result() > 0 for future in asked if future.exception() is None)
        assert ask(client, stream=False, tokens=7) == 7
    status = daemon.status()["engine"]
    assert (status["restarts"], status["last_death"]) == (1, "crash: signal 9")
    assert status["pid"] != first


def test_the_next_engine_has_the_config_of_now(daemon: RealDaemon) -> None:
    """Test that an engine that was started after a reload drafts by the new policy, not by that of the start."""
    before = daemon.metrics().get(RESTARTS, 0)
    daemon.write(policy={"kind": "static", "static_k": 2})
    assert daemon.reload().returncode == 0
    os.kill(daemon.status()["engine"]["pid"], signal.SIGKILL)
    wait_until(lambda: daemon.metrics().get(RESTARTS, 0) > before, "the restart to be counted")
    body = {"prompt": "a b " * 9, "max_tokens": 40, "temperature": 0, "specd": {"report": True}}
    answer = daemon.post("/v1/completions", body).json()
    assert max(answer["specd"]["k_histogram"]) == "2"
    assert daemon.get("/ready").status_code == 200
