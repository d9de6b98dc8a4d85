"""The parts of a training that its files give: texts, shards, corpus, vocabulary, head."""

from typing import Any, Final, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from engine.train import answers, features, kinds
from engine.train.answers import Text
from engine.train.corpus import Corpus, Vocabulary
from engine.train.job import Job
from engine.train.training import Plan, Trainer, Workers

_HELD_OUT: Final = 40  # every so many-th prompt is kept from training
_LONGEST_PROMPT: Final = 512  # longer ones cost more to read than their answers teach
_MIX: Final = 2_654_435_761  # odd, so that numbers times it, modulo 2**32, are a permutation


class HeadKind(Protocol):
    """What a kind's module provides beside `train`, where it is trained on shards."""

    def layers(self, count: int) -> tuple[int, ...]:
        """Whose hidden states are read, of so many layers; 0 is the embeddings."""

    def draft_vocabulary(self, vocabulary: int) -> int:
        """Tokens that training tells apart, of so many."""

    def make(self, target: Any, vocabulary: Vocabulary) -> nn.Module:
        """A head at its beginning: see engine.train.guess.Steps. Raises TrainError for targets that it cannot serve."""

    def write(self, head: nn.Module, vocabulary: Vocabulary, target: Any, job: Job) -> None:
        """config.json and model.safetensors, into `job.out`."""


def kind(job: Job) -> HeadKind:
    """The module of the job's kind."""
    return cast("HeadKind", kinds.load(job.kind))


def texts(job: Job) -> tuple[list[Text], list[Text]]:
    """What was answered, for training and held out, in an order that depends on nothing but the texts."""
    found = [text for path in job.all_answers for text in answers.read(path)]
    used = [text for text in found if len(text.prompt) <= _LONGEST_PROMPT and len(text.answer) > 1]
    used.sort(key=lambda text: text.number * _MIX % (1 << 32))  # all kinds of prompts in each shard
    held = [text for text in used if text.number % _HELD_OUT == 0]
    return [text for text in used if text.number % _HELD_OUT], held


def shards(job: Job) -> list[features.Shard]:
    """All that there will be, held-out ones first."""
    train, held = texts(job)
    return features.plan(held, job.shards, "held") + features.plan(train, job.shards, "train")


class Parts(NamedTuple):
    """What training and evaluation need."""

    target: Any
    head: nn.Module
    train: Corpus
    held: Corpus
    vocabulary: Vocabulary
    embedding: Tensor  # [V, H] float32, the target's


def parts(job: Job) -> Parts:
    """Reads the target and maps the shards; the head is at its beginning."""
    target = AutoModelForCausalLM.from_pretrained(job.target, dtype=torch.float32)
    corpus = Corpus(sorted(job.shards.glob("train-*.safetensors")))
    size = target.config.get_text_config().vocab_size
    vocabulary = corpus.vocabulary(kind(job).draft_vocabulary(size), size)
    torch.manual_seed(job.seed)
    head = kind(job).make(target, vocabulary)
    held = Corpus(sorted(job.shards.glob("held-*.safetensors")))
    embedding = target.get_input_embeddings().weight.detach()
    return Parts(target, head, corpus, held, vocabulary, embedding)


def trainer(job: Job, own: Parts, workers: Workers) -> Trainer:
    """A training at its beginning."""
    plan = Plan(minutes=job.minutes, seed=job.seed, narrow=job.dtype == "bfloat16")
    return Trainer(
        own.head,
        own.train,
        vocabulary=own.vocabulary,
        embedding=own.embedding,
        plan=plan,
        workers=workers,
    )
