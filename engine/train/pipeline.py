"""What a head goes through: prompts, answers, features, training, evaluation, files. Each goes on after a kill."""

import shlex
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec
from transformers import AutoConfig

from engine.train import acceptance, answers, assembly, crew, disk, export, prompts
from engine.train.assembly import Parts
from engine.train.errors import TrainError
from engine.train.job import Job
from engine.train.record import Record
from engine.train.training import Trainer, Workers

BUILTIN: Final = "builtin"
_ANSWER_LENGTH: Final = 100  # tokens, rather too few: so many more prompts are made than are answered


def train(job: Job) -> None:
    """All of it. Raises TrainError."""
    require_disk(job)
    file = answered(job)
    _shards(job, file)
    (job.work / "meeting").unlink(missing_ok=True)
    crew.work("train", file, [0] * job.workers, 1000, "trains the head")
    _finish(job)


def answered(job: Job) -> Path:
    """Have the prompts answered; returns the file that workers know the job by. Raises TrainError."""
    job.work.mkdir(parents=True, exist_ok=True)
    file = job.work / "job.json"
    export.write_text(file, msgspec.json.encode(job).decode())
    _prompts(job)
    _answers(job, file)
    return file


def require_disk(job: Job) -> None:
    """Raises TrainError where there is too little."""
    config = AutoConfig.from_pretrained(job.target).get_text_config()
    aux = len(assembly.kind(job).layers(config.num_hidden_layers))
    need = disk.shards(job.tokens, config.hidden_size, aux)
    reason = disk.shortage(need, int(job.disk * 1e9), job.work)
    if reason:
        raise TrainError(reason)


def _prompts(job: Job) -> None:
    if job.prompts_file.exists():
        return
    if job.prompts == BUILTIN:
        made = prompts.builtin(max(100, job.tokens // _ANSWER_LENGTH), job.seed)
    else:
        made = prompts.read(Path(job.prompts))
    if not made:
        raise TrainError(f"{job.prompts} holds no prompts")
    lines = [msgspec.json.encode(prompt).decode() + "\n" for prompt in made]
    export.write_text(job.prompts_file, "".join(lines))


def _answers(job: Job, file: Path) -> None:
    """Until there are tokens enough, or no prompts are left."""
    have = sum(len(text.answer) for path in job.all_answers for text in answers.read(path))
    missing = job.tokens - have
    if missing > 0:
        own = {
            rank: sum(len(text.answer) for text in answers.read(job.answers(rank)))
            for rank in range(job.workers)
        }
        goals = [own[rank] + -(-missing // job.workers) for rank in range(job.workers)]
        crew.work("answer", file, goals, sum(goals), "answers prompts")


def _shards(job: Job, file: Path) -> None:
    job.shards.mkdir(exist_ok=True)
    planned = assembly.shards(job)
    if not any(shard.path.name.startswith("train") for shard in planned):
        raise TrainError("no answer is left to train on: give more prompts, or ask for more --tokens")
    if not all(shard.path.exists() for shard in planned):
        total = sum(shard.tokens for shard in planned)
        crew.work("read", file, [0] * job.workers, total, "reads prompts and answers")


def _finish(job: Job) -> None:
    """Evaluate, and write the head with its record."""
    own = assembly.parts(job)
    trainer = assembly.trainer(job, own, Workers())
    trainer.resume(job.checkpoint)
    own.head.eval()
    assembly.kind(job).write(own.head, own.vocabulary, own.target, job)
    export.write_record(Path(job.out), record(job, own, trainer))


def command(job: Job) -> str:
    """What makes the same head again."""
    names = ("kind", "prompts", "tokens", "minutes", "seed", "workers")
    given = [f"--{name}={getattr(job, name)}" for name in names]
    return shlex.join(["specd", "draft", "train", *given, f"--target={job.name}", "--out=DIR"])


def record(job: Job, own: Parts, trainer: Trainer) -> Record:
    """What was done and what came of it. Takes a minute or so: the head is evaluated."""
    train, _ = assembly.texts(job)
    texts: Counter[str] = Counter(text.traffic_class for text in train)
    tokens: Counter[str] = Counter()
    for text in train:
        tokens[text.traffic_class] += len(text.answer)
    return Record(
        command=command(job),
        kind=job.kind,
        target=job.name,
        target_fingerprint=job.fingerprint,
        seed=job.seed,
        prompts=job.prompts,
        texts=dict(texts),
        tokens=dict(tokens),
        seconds=round(trainer.progress.seconds),
        rows=trainer.progress.rows,
        curve=trainer.progress.curve,
        acceptance=acceptance.table(own.head, own.held, own.vocabulary, own.embedding, own.held.places),
        drafted_from=len(own.vocabulary.kept),
        coverage=round(own.held.coverage(own.vocabulary), 4),
    )
