"""A stage done by several worker processes, with a bar for people."""

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from engine.train.errors import TrainError
from engine.train.stages import Told

PROGRAM: Final = (sys.executable, "-m", "engine.train.stages")


def work(stage: str, job_file: Path, goals: list[int], total: float, title: str) -> None:
    """One worker for each goal; returns when all are done. Raises TrainError when one fails.

    total: of what workers tell, together.
    """
    with _started(stage, job_file, goals) as processes, bar() as shown:
        task = shown.add_task(title, total=total, note="")
        done = [0.0] * len(processes)
        for rank, told in _told(processes):
            done[rank] = told.done
            shown.update(task, completed=sum(done))
            if told.text:
                shown.update(task, note=told.text)
        if any(process.poll() != 0 for process in processes):
            raise TrainError(f"what {title} failed (see above); the same command goes on where it was")
        shown.update(task, completed=total)


@contextmanager
def _started(stage: str, job_file: Path, goals: list[int]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Workers; none is left when this ends."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, goal in enumerate(goals):
            command = [*PROGRAM, stage, str(rank), str(goal), str(job_file)]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE))  # noqa: S603  our arguments
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _told(processes: list[subprocess.Popen[bytes]]) -> Iterator[tuple[int, Told]]:
    """What the workers tell, as it comes, until all have ended or one has failed."""
    heard: queue.SimpleQueue[tuple[int, bytes | None]] = queue.SimpleQueue()
    for rank, process in enumerate(processes):
        threading.Thread(target=_listen, args=(rank, process, heard), daemon=True).start()
    open_ends = len(processes)
    while open_ends:
        rank, line = heard.get()
        if line is not None:
            yield rank, msgspec.json.decode(line, type=Told)
            continue
        open_ends -= 1
        if processes[rank].wait() != 0:
            return


def _listen(
    rank: int, process: subprocess.Popen[bytes], heard: "queue.SimpleQueue[tuple[int, bytes | None]]"
) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            heard.put((rank, line))
    heard.put((rank, None))


@contextmanager
def bar() -> Iterator[Progress]:
    """With the expected time, on standard error. Tasks have a field `note`."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as shown:
        yield shown
