"""What the worker processes of a training do. Started as `python -m engine.train.stages STAGE RANK GOAL JOB`.

A stage tells how far it is by lines of JSON on its standard output.
"""

import gc
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import torch
from transformers import AutoTokenizer

from engine.model.loader import load
from engine.train import answers, assembly, features, prompts
from engine.train.job import Job
from engine.train.training import Workers

_RUNNING: Final = 64
_SAVE_SECONDS: Final = 90.0


class Told(msgspec.Struct, frozen=True):
    """How far one worker is, in the stage's own unit."""

    done: float
    text: str = ""


class Task(NamedTuple):
    """What one worker is to do of a stage."""

    job: Job
    rank: int
    goal: int


def answer(task: Task) -> Iterator[Told]:
    """Tokens of answers, up to the goal."""
    job = task.job
    done = {text.number for path in job.all_answers for text in answers.read(path)}
    waiting = [each for each in enumerate(prompts.read(job.prompts_file)) if each[0] not in done]
    tokenizer = AutoTokenizer.from_pretrained(job.target)
    engine = answers.engine_for(job, running=_RUNNING)
    gc.freeze()  # the prompts: millions of objects that are never garbage
    answering = answers.Answering(engine, tokenizer, job.answers(task.rank), width=_RUNNING + 8)
    for tokens in answering.run(waiting[task.rank :: job.workers], task.goal):
        yield Told(tokens)


def read(task: Task) -> Iterator[Told]:
    """Tokens of prompts and answers."""
    job, done = task.job, 0
    dtype = getattr(torch, job.dtype)
    cache = Path(job.cache) if job.cache else None
    loaded = load(Path(job.target), dtype, torch.device("cpu"), lambda _: None, cache=cache, squeeze=False)
    target = features.Target(loaded, assembly.kind(job).layers(len(loaded.shapes)))
    for shard in assembly.shards(job)[task.rank :: job.workers]:
        if not shard.path.exists():
            features.make(shard, target)
        done += shard.tokens
        yield Told(done)


def train(task: Task) -> Iterator[Told]:
    """Thousandths of the plan."""
    job = task.job
    workers = Workers(task.rank, job.workers)
    workers.join(job.work / "meeting")
    trainer = assembly.trainer(job, assembly.parts(job), workers)
    trainer.resume(job.checkpoint)
    saved = time.monotonic()
    for progress in trainer.run():
        losses = trainer.note() if progress.step % 10 == 0 else []
        if task.rank == 0 and time.monotonic() - saved > _SAVE_SECONDS:
            trainer.save(job.checkpoint)
            saved = time.monotonic()
        done = 1000 * progress.done(trainer.plan) / job.workers
        yield Told(done, "loss " + " ".join(f"{loss:.2f}" for loss in losses) if losses else "")
    trainer.note()
    if task.rank == 0:
        trainer.save(job.checkpoint)


STAGES: Final[dict[str, Callable[[Task], Iterator[Told]]]] = {"answer": answer, "read": read, "train": train}


def main(arguments: Sequence[str]) -> int:
    """Entry of a worker process."""
    name, rank, goal, file = arguments
    # Ctrl-C reaches the whole group; who started us ends us when it has seen it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    job = msgspec.json.decode(Path(file).read_bytes(), type=Job)
    for told in STAGES[name](Task(job, int(rank), int(goal))):
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
