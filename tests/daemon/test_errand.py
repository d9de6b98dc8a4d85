"""A long job: what it may take, at which priority, and that nothing of it is left."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specd.errors import UserError
from specd.target.errand import Bounds, run
from specd.target.idle import idle
from tests.daemon.conftest import until
from tests.daemon.daemon_process import ROOT, alive, wait_until

ENOUGH = Bounds(60.0, 1 << 30)


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def waiting(folder: Path) -> list[str]:
    """It and a child of it wait for ever, their ids in files."""
    child = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    return program(
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}, '{folder}/child']);"
        f"import os, time; open('{folder}/own', 'w').write(str(os.getpid())); time.sleep(600)"
    )


def ids(folder: Path) -> list[int]:
    texts = [(folder / name).read_text() for name in ("own", "child") if (folder / name).exists()]
    return [int(text) for text in texts if text]


async def test_it_takes_what_nobody_else_wants_and_says_what_it_likes(tmp_path):
    """Test that it runs at idle priority, and that its words are for its owner alone."""
    await run(idle(["cut", "-d ", "-f19,41", "/proc/self/stat"]), tmp_path, tmp_path / "log", ENOUGH)
    assert (tmp_path / "log").read_text() == f"19 {os.SCHED_IDLE}\n", "niceness and policy"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


async def test_a_failure_is_told_in_its_last_words(tmp_path):
    """Test that there is a sentence for one that says nothing, too."""
    said = "import sys; print('reading'); sys.exit('no room\\n')"
    for text, last in ((said, "no room"), ("import os; os._exit(1)", "it said nothing")):
        with pytest.raises(UserError) as failed:
            await run(program(text), tmp_path, tmp_path / "log", ENOUGH)
        assert str(failed.value) == f"it ended with code 1: {last}"


@pytest.mark.parametrize(
    ("bounds", "sentence"),
    [(Bounds(0.0, 1 << 30), "took longer than 0 minutes"), (Bounds(60.0, 1), "wrote more than 1e-09 GB")],
)
async def test_what_takes_more_than_it_may_is_ended(bounds, sentence, tmp_path):
    """Test that whoever it has started is ended with it."""
    work = asyncio.create_task(run(waiting(tmp_path), tmp_path, tmp_path / "log", ENOUGH, look=0.05))
    await until(lambda: len(ids(tmp_path)) == 2)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    await until(lambda: not any(map(alive, ids(tmp_path))))
    with pytest.raises(UserError, match=sentence):
        await run(waiting(tmp_path), tmp_path, tmp_path / "log", bounds, look=0.05)
    await until(lambda: not any(map(alive, ids(tmp_path))))


PARENT = """
import asyncio, sys
from pathlib import Path
from specd.target.errand import Bounds, run
from specd.target.idle import idle
folder = Path(sys.argv[1])
job = ["sh", "-c", f"echo $$ > {folder}/new; mv {folder}/new {folder}/own; exec sleep 600"]
asyncio.run(run(idle(job), folder, folder / "log", Bounds(600.0, 1 << 30)))
"""


def test_it_does_not_outlive_a_daemon_that_is_killed(tmp_path):
    """Test that the kernel ends it when its parent is gone."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=ROOT
    )
    wait_until((tmp_path / "own").exists, "the job")
    (own,) = ids(tmp_path)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not alive(own), "its end")
