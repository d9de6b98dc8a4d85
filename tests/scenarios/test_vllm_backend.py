"""vLLM as the engine, where that is more than an engine: it has processes of its own, and ways to say no."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.daemon_process import VLLM, alive, wait_until
from tests.scenarios.stage import RealDaemon, Stage

pytestmark = pytest.mark.skipif(not VLLM, reason="needs vLLM in an environment of its own: make test-vllm")

ENDLESS = {
    "prompt": "the daemon drafts",
    "max_tokens": 4000,
    "temperature": 0.0,
    "ignore_eos": True,
    "specd": {"speculate": "off"},
}
SHORT = ENDLESS | {"max_tokens": 5}


@pytest.fixture(scope="module")
def daemon(stage: Stage) -> Iterator[RealDaemon]:
    with stage.daemon(engine={"max_running": 2, "hang_seconds": 5.0}) as daemon:
        yield daemon.ready()


def core_of(daemon: RealDaemon) -> int:
    """The process of vLLM's engine core."""
    engine = daemon.status()["engine"]["pid"]
    children = Path(f"/proc/{engine}/task/{engine}/children").read_text().split()
    (core,) = [pid for pid in children if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return int(core)


def forget_log(daemon: RealDaemon) -> None:
    """vLLM tells of ends and faults with a traceback, which the stage takes for one of ours."""
    daemon._stderr.write_text("")


def comes_back(daemon: RealDaemon, restarts: int) -> None:
    wait_until(lambda: daemon.status()["engine"]["restarts"] == restarts, "the restart")
    assert daemon.post("/v1/completions", SHORT).json()["usage"]["completion_tokens"] == 5


def restarts(daemon: RealDaemon) -> int:
    return daemon.status()["engine"]["restarts"]


@pytest.mark.parametrize(
    ("number", "death"),
    [
        (signal.SIGKILL, "the process of vLLM's engine core ended"),
        (signal.SIGSTOP, "hang: killed: it neither"),
    ],
)
def test_a_core_that_ends_or_hangs_is_replaced(
    daemon: RealDaemon, number: signal.Signals, death: str
) -> None:
    """Test that a request in it gets an error, that the next engine serves, and that the old core is gone."""
    before, core = restarts(daemon), core_of(daemon)
    with daemon.client() as client:
        stream = client.completions.create(model="tiny", stream=True, **_for_client(ENDLESS))
        next(iter(stream))
        os.kill(core, number)
        with pytest.raises(Exception, match="the engine stopped"):
            list(stream)
    comes_back(daemon, before + 1)
    assert death in daemon.status()["engine"]["last_death"]
    assert not alive(core)
    forget_log(daemon)


def test_a_core_ends_with_its_engine_process(daemon: RealDaemon) -> None:
    """Test that nothing computes on when the process that speaks with the daemon was killed."""
    before, core = restarts(daemon), core_of(daemon)
    os.kill(daemon.status()["engine"]["pid"], signal.SIGKILL)
    comes_back(daemon, before + 1)
    assert not alive(core)


@pytest.mark.parametrize(
    ("asked", "name"), [({"min_p": 0.2}, "min_p"), ({"logit_bias": {"5": 3}}, "logit_bias")]
)
def test_what_it_cannot_draw_is_the_clients_to_leave_out(
    daemon: RealDaemon, asked: dict[str, object], name: str
) -> None:
    """Test that the answer is a bad request with a sentence that names the parameter."""
    answer = daemon.post("/v1/completions", SHORT | asked)
    assert answer.status_code == 400
    assert f"{name} is asked for, which vLLM cannot do" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"no_such_option": 1}, "engine.vllm.options: vLLM takes"),
        ({"kv_cache_memory_bytes": 1}, "cannot be served by vLLM"),
    ],
)
def test_a_start_that_vllm_refuses_says_why(stage: Stage, options: dict[str, object], sentence: str) -> None:
    """Test that the daemon ends with 2 and with vLLM's reason, from its own process or from that of its core."""
    with stage.daemon(engine={"vllm": {"options": options}}) as daemon:
        assert daemon.wait() == 2
        last = daemon.log.strip().splitlines()[-1]
        assert sentence in last
        assert "Engine core initialization failed" not in last
        forget_log(daemon)


def _for_client(body: dict[str, object]) -> dict[str, object]:
    own = {"ignore_eos", "specd"}
    return {name: value for name, value in body.items() if name not in own} | {
        "extra_body": {name: body[name] for name in own}
    }
