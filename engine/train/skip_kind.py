"""Layer skip as a kind that is trained: the target writes texts, and the layers to leave out are searched on them."""

from pathlib import Path

import torch

from engine.model.loader import load
from engine.skipset import SkipSet
from engine.train import assembly, crew, disk, pipeline
from engine.train.agreement import Excerpt
from engine.train.errors import TrainError
from engine.train.job import Job
from engine.train.layer_skip import Found, Journal, Lesson, judged, searched, split
from engine.train.skip_search import Progress
from engine.train.skip_worth import Costs

_ROWS = 8_000  # tokens that the search looks at, and as many that it is judged by
_LONGEST = 512


def train(job: Job) -> None:
    """See engine.train.kinds."""
    if reason := disk.shortage(disk.texts(job.tokens), int(job.disk * 1e9), job.work):
        raise TrainError(reason)
    pipeline.answered(job)
    found, layers, tokens = _search(job)
    if not found.skip:
        raise TrainError("leaving any layer out is slower than plain decoding here: no set is written")
    out = Path(job.out)
    _skip_set(job, found, layers, tokens).write(out)


def _search(job: Job) -> tuple[Found, int, int]:
    """The best set, judged on texts that the search did not see; the target's layers; tokens that the search saw."""
    torch.set_num_threads(job.workers)
    cache = Path(job.cache) if job.cache else None
    target = load(
        Path(job.target), getattr(torch, job.dtype), torch.device("cpu"), lambda _: None, cache=cache
    )
    seen, held = split(_excerpts(job), _ROWS, job.seed)
    costs = Costs.measured(target)
    best = _best(Lesson(target, seen), costs, Journal(job.work / "tried.jsonl"))
    tokens = sum(len(excerpt.tokens) - excerpt.start for excerpt in seen)
    return judged(best.best, Lesson(target, held), costs), costs.layers, tokens


def _excerpts(job: Job) -> list[Excerpt]:
    texts = [text for part in assembly.texts(job) for text in part]
    if not texts:
        raise TrainError("no answer is left to search on: give more prompts, or ask for more --tokens")
    return [Excerpt((text.prompt + text.answer)[:_LONGEST], len(text.prompt)) for text in texts]


def _best(lesson: Lesson, costs: Costs, journal: Journal) -> Progress:
    """Where the search ends. How many sets it looks at is not known before."""
    last = Progress(0, (), 0.0)
    with crew.bar() as bar:
        task = bar.add_task("searches layers", total=None, note="")
        for last in searched(lesson, costs, journal):
            note = f"{last.tried} sets, best so far {last.worth:.2f} times plain, without {len(last.best)} layers"
            bar.update(task, completed=last.tried, note=note)
    return last


def _skip_set(job: Job, found: Found, layers: int, tokens: int) -> SkipSet:
    return SkipSet(
        target=job.fingerprint,
        layers=layers,
        skip=found.skip,
        examined=found.counts.examined,
        accepted=found.counts.accepted,
        cost=round(found.cost, 4),
        k=found.best.k,
        speedup=round(found.best.speedup, 4),
        seed=job.seed,
        texts=job.prompts,
        tokens=tokens,
        command=pipeline.command(job),
    )
