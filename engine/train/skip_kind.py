"""Layer skip as a kind that is trained: the target writes texts, and the layers to leave out are searched on them."""

import time
from pathlib import Path
from typing import Final

import msgspec
import torch
from msgspec import structs

from engine.model.loader import LoadedModel, load
from engine.skipset import SkipSet
from engine.train import answers, crew, disk, export, pipeline
from engine.train.agreement import Excerpt
from engine.train.errors import TrainError
from engine.train.job import Job
from engine.train.layer_skip import Found, Journal, Lesson, judged, searched, split
from engine.train.skip_search import Skip
from engine.train.skip_worth import Costs

_ANSWERS: Final = (
    20_000  # tokens that the target is asked for, at most: a search needs far fewer than a training
)
_ROUNDS: Final = 1_024  # that a set is tried in, and as many that the best one is judged by
_LONGEST: Final = 1_024  # tokens of a text: attention over all its rounds at once takes their square


def train(job: Job) -> None:
    """See engine.train.kinds."""
    job = structs.replace(job, tokens=min(job.tokens, _ANSWERS))
    if reason := disk.shortage(disk.texts(job.tokens), int(job.disk * 1e9), job.work):
        raise TrainError(reason)
    pipeline.answered(job)
    parts = split(_excerpts(job), _ROUNDS, job.seed)
    torch.set_num_threads(job.workers)
    costs = _costs(job)
    target = _load(job, native=False)  # a forward whose attention can be another one than the paged
    if target.start:
        raise TrainError(
            f"{target.model_type} has an encoder, of which this search knows nothing: give a decoder-only target"
        )
    searched_on, judged_on = (Lesson(target, part) for part in parts)
    found = judged(_search(searched_on, costs, job), judged_on, costs)
    _skip_set(job, found, costs, searched_on.rounds).write(Path(job.out))


def _excerpts(job: Job) -> list[Excerpt]:
    """What the target said at temperature 0: there, what it would say next is what it did say."""
    texts = [text for path in job.all_answers for text in answers.read(path) if text.temperature == 0]
    found = [Excerpt(text.prompt + text.answer, len(text.prompt)) for text in texts if len(text.answer) > 1]
    short = [excerpt for excerpt in found if len(excerpt.tokens) <= _LONGEST]
    if not short:
        raise TrainError("no answer is left to search on: give more prompts, or ask for more --tokens")
    return short


def _load(job: Job, *, native: bool) -> LoadedModel:
    cache = Path(job.cache) if native and job.cache else None
    return load(Path(job.target), getattr(torch, job.dtype), torch.device("cpu"), lambda _: None, cache=cache)


def _costs(job: Job) -> Costs:
    """Measured once, with the forward that serves: a search that goes on must not judge by other numbers."""
    file = job.work / "costs.json"
    if not file.exists():
        export.write_text(file, msgspec.json.encode(Costs.measured(_load(job, native=True))).decode())
    return msgspec.json.decode(file.read_bytes(), type=Costs)


def _search(lesson: Lesson, costs: Costs, job: Job) -> Skip:
    """Until the search ends, or the minutes have passed: then the best so far."""
    end = time.monotonic() + 60 * job.minutes
    skip: Skip = ()
    with crew.bar() as bar:
        task = bar.add_task("searches layers", total=None, note="")
        for found in searched(lesson, costs, Journal(job.work / "tried.jsonl")):
            skip, note = (
                found.best,
                f"{found.tried} sets; best {list(found.best)}: {found.worth:.2f} times plain",
            )
            bar.update(task, completed=found.tried, total=found.tried + found.left, note=note)
            if time.monotonic() > end:
                break
        bar.update(task, total=bar.tasks[task].completed)
    return skip


def _skip_set(job: Job, found: Found, costs: Costs, rounds: int) -> SkipSet:
    return SkipSet(
        target=job.fingerprint,
        layers=costs.layers,
        skip=found.skip,
        examined=found.counts.examined,
        accepted=found.counts.accepted,
        cost=round(found.cost, 4),
        k=found.best.k,
        speedup=round(found.best.speedup, 4),
        seed=job.seed,
        texts=job.prompts,
        tokens=rounds,
        command=pipeline.command(job),
    )
