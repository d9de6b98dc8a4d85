"""What is kept of engines that died, and what their own words come to."""

import asyncio
import json
import logging
import os
import sys

import pytest

from engine.api import KVUsage, Output, PhaseSeconds, StepReport
from policies.base import LoadState
from specd.cli import main
from specd.crashes import Crashes, CrashFiles, CrashWitness
from specd.engine_output import EngineOutput
from specd.engine_process import EngineProcess, ending, kernel_kills
from specd.errors import UserError
from specd.restarts import Death
from tests.daemon.conftest import until

DEATH = Death("crash", "signal 9", 12.5, ("Fatal Python error: Segmentation fault",))
STEP = StepReport(
    step=7,
    phases=PhaseSeconds(schedule=0.0, draft=0.0, verify=0.1, commit=0.0),
    rows=3,
    prefill_rows=2,
    running=1,
    waiting=4,
    committed=1,
    kv=KVUsage(free=9, used=1),
    load_state=LoadState.FULL,
    rounds=[],
    outputs=[Output(id="secret-request", tokens=[1, 2])],
)


@pytest.fixture
def crashes(tmp_path):
    return Crashes(tmp_path / "crashes", lambda: {"config": "abc", "target_revision": "t1"})


async def test_a_report_has_numbers_and_last_words(crashes, tmp_path):
    """Test that a report says when, how, what served, the last step in numbers and the last lines, nobody else reads
    its file, and nothing of any request is in it.
    """
    witness = CrashWitness(crashes)
    witness.step(STEP)
    witness.died(DEATH)
    await crashes.aclose()
    (file,) = (tmp_path / "crashes").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    report = json.loads(file.read_text())
    assert (report["reason"], report["text"], report["ready_seconds"]) == ("crash", "signal 9", 12.5)
    assert (report["config"], report["target_revision"]) == ("abc", "t1")
    assert (report["last_step"]["step"], report["last_step"]["kv"]["free"]) == (7, 9)
    assert report["last_step"]["seconds_before"] >= 0
    assert report["last_lines"] == ["Fatal Python error: Segmentation fault"]
    assert "secret-request" not in file.read_text()
    (summary,) = await crashes.list()
    assert summary == crashes.last
    assert await crashes.show(summary["id"]) == report


async def test_the_last_of_an_earlier_daemon_is_known(crashes, tmp_path):
    """Test that a new daemon names the last report that it finds, and that a file of somebody else's is passed over."""
    for _ in range(2):
        CrashWitness(crashes).died(DEATH)
    await crashes.aclose()
    for name, text in (("zzz", "[1]"), ("zzy", '{"id": "zzy", "time": null}')):
        (tmp_path / "crashes" / f"{name}.json").write_text(text)
    later = Crashes(tmp_path / "crashes", dict)
    await later.start()
    assert list(later.recent) == list(crashes.recent) == await later.list()
    assert len(await later.list()) == 2


def test_their_number_is_bounded(tmp_path):
    """Test that the oldest give way, and that a name cannot lead out of the directory."""
    files = CrashFiles(tmp_path / "crashes")
    for number in range(30):
        files.add({"id": f"2026-{number:04d}"})
    assert files.names() == [f"2026-{number:04d}" for number in range(29, 9, -1)]
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UserError, match="there is no crash report"):
        files.read("../other")


async def test_a_disk_that_fails_costs_the_report_and_nothing_else(tmp_path, caplog):
    """Test that the failure is logged."""
    (tmp_path / "crashes").write_text("no directory")
    crashes = Crashes(tmp_path / "crashes", dict)
    crashes.record(DEATH, None, None)
    await crashes.aclose()
    assert "could not be kept" in caplog.text
    assert crashes.last["text"] == "signal 9"


@pytest.mark.parametrize(
    ("code", "kernel", "text"),
    [
        (-9, False, "signal 9"),
        (-9, True, "signal 9; meanwhile the kernel ended a process for want of memory"),
        (1, True, "exit code 1"),
        (3, False, "it ran out of memory in a step (exit code 3)"),
        (4, False, "its device failed (exit code 4)"),
    ],
)
def test_an_ending_is_put_into_words(code, kernel, text):
    """Test that what an engine knew of its end, and what the kernel did, is said."""
    assert ending(code, killed_by_kernel=kernel) == text


def test_the_kernels_count_is_read(tmp_path):
    """Test that it is found among the others, and is 0 where there is none."""
    (tmp_path / "vmstat").write_text("nr_free_pages 12\noom_kill 3\npgfault 1\n")
    assert kernel_kills(tmp_path / "vmstat") == 3
    assert kernel_kills(tmp_path / "none") == 0


async def test_what_an_engine_writes_becomes_lines_of_the_log(caplog):
    """Test that levels are kept, that endless lines and control characters do no harm, and a last half line counts."""
    stream = asyncio.StreamReader()
    with caplog.at_level(logging.INFO, "specd.engine"):
        output = EngineOutput(stream)
        stream.feed_data(b"WARNING specd.engine: careful\r\nplain\nERR")
        stream.feed_data(b"OR specd.engine: bad\n" + b"x" * 200_000)
        stream.feed_data(b"y\n\xff\x1b[31m\nhalf")
        stream.feed_eof()
        await output.end()
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told[:3] == [("WARNING", "careful"), ("INFO", "plain"), ("ERROR", "bad")]
    assert output.last_lines[1:3] == ("plain", "ERROR specd.engine: bad")
    assert [len(line) for line in output.last_lines[3:]] == [500, 6, 4]
    assert told[-1] == ("INFO", "half")


async def test_only_the_last_lines_are_kept():
    """Test that an engine that writes without end fills no memory."""
    stream = asyncio.StreamReader()
    output = EngineOutput(stream)
    for number in range(5000):
        stream.feed_data(b"line %d\n" % number)
    stream.feed_eof()
    await output.end()
    assert output.last_lines[0] == "line 4800"
    assert output.last_lines[-1] == "line 4999"


HANGS = """
import faulthandler, signal, sys, time
faulthandler.register(signal.SIGUSR1)
print("up", flush=True)
def stuck():
    time.sleep(3600)
stuck()
"""


async def test_an_engine_that_hangs_says_where():
    """Test that its threads' tracebacks are among its last lines before it is killed."""
    process = await EngineProcess.start([sys.executable, "-c", HANGS])
    await until(lambda: process.last_lines)
    await process.testify(10)
    assert await process.end(grace=0) == "signal 9"
    assert any("in stuck" in line for line in process.last_lines)


def test_a_death_is_in_status_and_can_be_read(daemons, capsys):
    """Test from outside: the report of a crash is named by status, listed and shown by the command line."""
    daemons.engine.behave(writes="WARNING specd.engine: last words\n")
    daemon = daemons.start().ready()
    assert daemon.post("/v1/completions", {"prompt": "my secret <crash>"}).status_code == 503
    assert daemon.post("/v1/completions", {"prompt": "ab", "max_tokens": 2}).status_code == 200
    last = daemon.status()["engine"]["last_crash"]
    assert (last["reason"], last["text"]) == ("crash", "signal 9")
    where = ["--admin", daemon.admin.removeprefix("http://")]
    assert main(["status", *where]) == 0
    assert f"{'crash':<16}{last['id']}: signal 9" in capsys.readouterr().out
    assert main(["crashes", "list", *where]) == 0
    assert capsys.readouterr().out.startswith(f"{last['id']}  {last['time']}  crash: signal 9")
    assert main(["crashes", "show", *where]) == 0
    shown = capsys.readouterr().out
    assert "  WARNING specd.engine: last words" in shown
    assert "my secret" not in shown
    assert main(["crashes", "show", "../nonsense", *where]) == 2
    assert "WARNING specd.engine: last words" in daemon.log


def test_an_engine_out_of_memory_says_so(daemons):
    """Test that requests in flight get a retryable error with the reason, and the next is served."""
    daemons.engine.behave(exit_at=3)
    daemon = daemons.start().ready()
    lost = daemon.post("/v1/completions", {"prompt": "<crash>"})
    assert lost.status_code == 503
    assert 1 <= int(lost.headers["retry-after"]) <= 10
    assert "it ran out of memory in a step" in lost.json()["error"]["message"]
    assert daemon.post("/v1/completions", {"prompt": "ab", "max_tokens": 2}).status_code == 200
    os.kill(daemon.status()["engine"]["pid"], 0)
