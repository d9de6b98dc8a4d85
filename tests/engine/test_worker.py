"""The engine as the daemon sees it: a process behind a socket."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from engine.api import (
    Cancel,
    Configure,
    DraftSettings,
    FromEngine,
    Idle,
    Launch,
    Move,
    Ready,
    Refused,
    StepReport,
    Submit,
    ToEngine,
)
from engine.wire import frame, read_from_engine
from policies.cost import DraftCost, StepCosts
from policies.settings import PolicySettings
from tests.engine.conftest import request

DEADLINE = 120
COSTS = StepCosts(((1, 0.01), (8, 0.02)), {"ngram": DraftCost(0.001)}, key=1e-6)
USUAL = os.getpriority(os.PRIO_PROCESS, 0)


class Engine:
    """A worker process and the daemon's end of its socket."""

    def __init__(self, launch: Launch) -> None:
        self.socket, theirs = socket.socketpair()
        command = [sys.executable, "-m", "engine.worker", "--fd", str(theirs.fileno())]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        self.send(launch)

    def send(self, message: ToEngine) -> None:
        self.socket.sendall(frame(message))

    async def messages_until(
        self, last: type[FromEngine], *, finished: str | None = None
    ) -> list[FromEngine]:
        """Everything up to the first message of a type (or the step that finishes a request)."""
        reader, writer = await asyncio.open_unix_connection(sock=self.socket.dup())
        seen: list[FromEngine] = []
        async with asyncio.timeout(DEADLINE):
            while True:
                message = await read_from_engine(reader)
                seen.append(message)
                if isinstance(message, last) and (finished is None or _finishes(message, finished)):
                    writer.close()
                    await writer.wait_closed()
                    return seen

    def close(self) -> int:
        self.socket.close()
        return self.process.wait(DEADLINE)


def _finishes(report: FromEngine, name: str) -> bool:
    return isinstance(report, StepReport) and any(o.id == name and o.finish for o in report.outputs)


def launch(path: Path) -> Launch:
    return Launch(model_path=str(path), dtype="float32", threads=1, kv_bytes=1 << 20, block_size=4)


@pytest.fixture(scope="module")
def engine(tiny_dir: Path) -> Iterator[Engine]:
    """It comes behind another one, and with what is known of its costs."""
    engine = Engine(structs.replace(launch(tiny_dir), share="behind", costs=COSTS))
    yield engine
    engine.close()


async def test_an_engine_that_comes_behind_another_steps_back(engine: Engine) -> None:
    """All its threads are nicer while another engine serves, where that can be undone at all."""
    *loading, ready = await engine.messages_until(Ready)
    assert any(said.message.startswith("memory: weights") for said in loading)
    assert ready.memory.keys() == {"weights", "draft_weights", "kv", "draft_kv", "suffix", "verify"}
    assert ready.model_type == "llama"
    assert ready.memory["kv"] <= 1 << 20
    assert niceness(engine.process.pid) == {USUAL + 10 if may_return() else USUAL}


async def test_an_engine_begins_with_the_costs_of_a_profile(engine: Engine) -> None:
    *_, idle = await engine.messages_until(Idle)
    assert idle.costs == COSTS


async def test_an_engine_that_serves_alone_has_its_share_of_the_processor_again(engine: Engine) -> None:
    engine.send(Move("alone"))
    await engine.messages_until(Idle)
    engine.send(Submit(request("first", [5] * 8)))
    await engine.messages_until(StepReport, finished="first")
    assert niceness(engine.process.pid) == {USUAL}


async def test_a_request_is_served_configured_and_cancelled_over_the_wire(engine: Engine) -> None:
    engine.send(Configure(policy=PolicySettings(kind="static", static_k=2), draft=DraftSettings(ngram_min=1)))
    engine.send(Submit(request("a", [5, 6, 5, 6, 5])))
    reports = await engine.messages_until(StepReport, finished="a")
    assert sum(len(o.tokens) for r in reports if isinstance(r, StepReport) for o in r.outputs) == 24
    assert {r.k for report in reports if isinstance(report, StepReport) for r in report.rounds} <= {0, 1, 2}
    engine.send(Submit(request("b", [5] * 8, max_tokens=400)))
    engine.send(Cancel("b"))
    *_, last = await engine.messages_until(StepReport, finished="b")
    assert [o.finish for o in last.outputs] == ["cancelled"]
    *_, idle = await engine.messages_until(Idle)
    assert idle.kv.used == 0


async def test_an_engine_that_is_sent_garbage_ends(engine: Engine) -> None:
    """One that went on without listening would look alive for ever. The last that is asked of this one."""
    engine.socket.sendall(b"\x03\x00\x00\x00abc")
    assert engine.process.wait(DEADLINE) == 0


async def test_settings_sent_while_the_model_loads_are_not_lost(tiny_dir: Path) -> None:
    """The daemon may reload its config at any moment, also before the engine has read its Launch."""
    engine = Engine(launch(tiny_dir))
    engine.send(Configure(policy=PolicySettings(kind="off"), draft=DraftSettings(ngram_min=1)))
    engine.send(Submit(request("a", [5, 6] * 6)))
    reports = await engine.messages_until(StepReport, finished="a")
    assert {r.reason for report in reports if isinstance(report, StepReport) for r in report.rounds} == {
        "disabled"
    }
    assert engine.close() == 0


async def test_a_model_that_cannot_be_served_is_refused_with_exit_2(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bloom", "architectures": ["BloomForCausalLM"]}')
    engine = Engine(launch(tmp_path))
    *_, refused = await engine.messages_until(Refused)
    assert "bloom" in refused.message
    assert engine.close() == 2


async def test_a_lack_of_memory_is_told_from_other_refusals(tiny_dir: Path) -> None:
    """Whoever asked may have more of it later."""
    engine = Engine(structs.replace(launch(tiny_dir), kv_bytes=1 << 50))
    *_, refused = await engine.messages_until(Refused)
    assert refused.lacks_memory
    assert "lower engine.kv_mib" in refused.message
    assert engine.close() == 2


def may_return() -> bool:
    """Whether this user may lower a niceness that was raised."""
    asked = [
        sys.executable,
        "-c",
        "import os; os.nice(1); os.setpriority(os.PRIO_PROCESS, 0, os.nice(0) - 1)",
    ]
    return subprocess.run(asked, check=False, stderr=subprocess.DEVNULL).returncode == 0


def niceness(pid: int) -> set[int]:
    """Of all its threads."""
    return {os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()}
