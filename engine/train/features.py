"""What the target thinks of the texts: its hidden states and laws, in shards of safetensors.

A shard holds whole texts back to back:

    tokens     [T]      int32
    aux        [T, A*H] bfloat16, the hidden states that a head reads, from the lowest layer to the highest
    law_ids    [T, K]   int32, the likeliest next tokens, falling
    law_probs  [T, K]   float16, their probabilities; 0 where the law was not asked for
    weights    [T]      float16, how much a row's law counts in training
    starts     [N + 1]  int64, where each text begins
    sampled    [N]      uint8, whether the answer was drawn and not greedy
    classes    [N]      uint8, place in `CLASSES`
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, get_args

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.batch import Span
from engine.kv.memory import KVMemory
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.loader import LoadedModel
from engine.model.runner import Runner
from engine.model.taps import Taps
from engine.train.answers import Text
from engine.train.prompts import Class

CLASSES: Final = get_args(Class)
LAW_WIDTH: Final = 32
LONGEST: Final = 1_024
SHARD_TOKENS: Final = 65_536
_ROWS: Final = 1_024
"""Of one forward, about: larger ones leave the processor's cache."""
_BLOCK: Final = 16
_GROUP: Final = 64
_PROMPT_ROWS: Final = 3
"""Of a prompt's rows every third counts: they are the target's law as well, of text that is not its own."""
_PROMPT_WEIGHT: Final = 0.5


class Shard(NamedTuple):
    """Names and places of the texts that a shard is made of."""

    path: Path
    texts: Sequence[Text]

    @property
    def tokens(self) -> int:
        """Of prompts and answers."""
        return sum(len(text.prompt) + len(text.answer) for text in self.texts)


def bytes_per_token(hidden: int, aux: int) -> int:
    """What a shard keeps of a token."""
    return 4 + 2 * hidden * aux + LAW_WIDTH * 6 + 2


def plan(texts: Sequence[Text], folder: Path, prefix: str) -> list[Shard]:
    """Cut texts into shards of about SHARD_TOKENS, in order."""
    shards: list[Shard] = []
    pending: list[Text] = []
    tokens = 0
    for text in texts:
        pending.append(text)
        tokens += len(text.prompt) + len(text.answer)
        if tokens >= SHARD_TOKENS:
            shards.append(Shard(folder / f"{prefix}-{len(shards):04}.safetensors", pending))
            pending, tokens = [], 0
    if pending:
        shards.append(Shard(folder / f"{prefix}-{len(shards):04}.safetensors", pending))
    return shards


def make(shard: Shard, target: "Target") -> None:
    """Write a shard, in one step: a file that is there is whole."""
    parts = [part for texts in _batches(shard.texts) for part in target.rows(texts)]
    tensors = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    lengths = torch.tensor([0, *(len(part["tokens"]) for part in parts)])
    partial = shard.path.with_suffix(".partial")
    save_file({**tensors, "starts": lengths.cumsum(0)}, partial)
    partial.rename(shard.path)


def read(path: Path) -> dict[str, Tensor]:
    """A shard's tensors, mapped and not read."""
    return load_file(path)


def _batches(texts: Sequence[Text]) -> Iterator[list[Text]]:
    """Texts for one forward each."""
    batch: list[Text] = []
    rows = 0
    for text in texts:
        length = min(LONGEST, len(text.prompt) + len(text.answer))
        if batch and rows + length > _ROWS:
            yield batch
            batch, rows = [], 0
        batch.append(text)
        rows += length
    if batch:
        yield batch


class Target:
    """Reads texts."""

    def __init__(self, loaded: LoadedModel, layers: tuple[int, ...]) -> None:
        """layers: whose hidden states a head reads."""
        self._loaded = loaded
        self._layers = layers
        blocks = 2 * (_ROWS + LONGEST) // _BLOCK
        self._pool = BlockPool(blocks, _BLOCK)
        memory = KVMemory(loaded.shapes, blocks, _BLOCK, loaded.dtype, loaded.device)
        self._runner = Runner(memory, loaded.kernels)

    def rows(self, texts: Sequence[Text]) -> Iterator[dict[str, Tensor]]:
        """For each text what a shard keeps of it."""
        ids = [(text.prompt + text.answer)[:LONGEST] for text in texts]
        weights = [_weights(text, len(own)) for text, own in zip(texts, ids, strict=True)]
        lengths = [len(own) for own in ids]
        aux, laws = self._read(ids, torch.cat(weights) > 0)
        parts = zip(*(torch.split(each, lengths) for each in (aux, *laws)), strict=True)
        for text, own, weight, (states, likeliest, probs) in zip(texts, ids, weights, parts, strict=True):
            yield {
                "tokens": torch.tensor(own, dtype=torch.int32),
                "aux": states,
                "law_ids": likeliest,
                "law_probs": probs,
                "weights": weight,
                "sampled": torch.tensor([text.temperature > 0], dtype=torch.uint8),
                "classes": torch.tensor([CLASSES.index(text.traffic_class)], dtype=torch.uint8),
            }

    @torch.inference_mode()
    def _read(self, texts: Sequence[list[int]], wanted: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """[T, A * H], and the laws of the wanted rows: [T, K] each."""
        tables = [BlockTable(self._pool) for _ in texts]
        for table, ids in zip(tables, texts, strict=True):
            table.reserve(len(ids))
        spans = [Span(table, 0, ids, 0) for table, ids in zip(tables, texts, strict=True)]
        batch = replace(self._runner.pack(spans), logit_rows=wanted.nonzero()[:, 0])
        taps = Taps(self._layers)
        logits = self._runner.run(self._loaded.forward, batch, taps)
        for table in tables:
            table.release()
        return taps.of(self._layers).bfloat16(), _laws(logits.float(), wanted)


def _weights(text: Text, length: int) -> Tensor:
    """[length]: 1 for rows whose law gives a token of the answer, and for the one behind it."""
    weights = torch.zeros(length, dtype=torch.float16)
    weights[::_PROMPT_ROWS] = _PROMPT_WEIGHT
    weights[len(text.prompt) - 1 :] = 1.0
    return weights


def _laws(logits: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest tokens and their probabilities, in the wanted rows: [T, K] each. logits: [R, V], spoilt."""
    ids = torch.zeros(len(wanted), LAW_WIDTH, dtype=torch.int32)
    probs = torch.zeros(len(wanted), LAW_WIDTH, dtype=torch.float16)
    values, places = likeliest(logits, min(LAW_WIDTH, logits.shape[-1]))
    mass = logits.sub_(values[:, :1]).exp_().sum(-1, keepdim=True)
    ids[wanted, : places.shape[-1]] = places.int()
    probs[wanted, : places.shape[-1]] = ((values - values[:, :1]).exp() / mass).half()
    return ids, probs


def likeliest(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """topk of [R, V]: first the k groups with the largest maxima, then their numbers: a third of the time."""
    rows, width = logits.shape
    if width % _GROUP or width // _GROUP < k:
        top = logits.topk(k)
        return top.values, top.indices
    groups = logits.view(rows, -1, _GROUP)
    best = groups.amax(-1).topk(k).indices  # [R, k]
    found = groups.gather(1, best[..., None].expand(-1, -1, _GROUP)).flatten(1).topk(k)
    places = best.gather(1, found.indices // _GROUP) * _GROUP + found.indices % _GROUP
    return found.values, places
