"""Shards as a head trains on them: texts of like length side by side, laws in the draft vocabulary."""

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from engine.train import features

_WINDOW = 256  # texts that are sorted by length together: little padding, and batches are mixed all the same
_WHOLE = 0.25  # of the texts are seen whole; of the others only the end of the prompt, most of which teaches little
_PROMPT_ROWS = 48


class Place(NamedTuple):
    """A text in a shard."""

    shard: int
    begin: int
    end: int
    number: int  # in its shard
    answer: int  # where the answer begins

    @property
    def rows(self) -> int:
        """Of a head: the last token has no token after it."""
        return self.end - self.begin - 1


class Batch(NamedTuple):
    """B texts, padded on the right to L rows; row i of a head goes with the target's law at i + 1."""

    tokens: Tensor  # [B, L] int64, the token after each row's
    aux: Tensor  # [B, L, A * H] bfloat16
    ids: Tensor  # [B, L, K] int64, of the law, in the draft vocabulary
    probs: Tensor  # [B, L, K] float32; 0 for what the draft vocabulary lacks
    weights: Tensor  # [B, L] float32; 0 for padding
    best: Tensor  # [B, L] int64, the likeliest token, in the target's vocabulary
    full: Tensor  # [B, L, K] float32, probabilities whatever the draft vocabulary has


class Vocabulary(NamedTuple):
    """The target's tokens that a head can guess."""

    kept: Tensor  # [Vd] int64, target ids, rising
    places: Tensor  # [V] int64, the draft id of a target id; -1 for those not kept


class Corpus:
    """Texts of some shards."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._shards = [features.read(path) for path in paths]
        self.places: list[Place] = []
        for index, shard in enumerate(self._shards):
            starts, answers = shard["starts"].tolist(), shard["weights"] == 1
            for n, (begin, end) in enumerate(itertools.pairwise(starts)):
                answer = begin + int(answers[begin:end].int().argmax()) + 1
                if end - begin > 2:
                    self.places.append(Place(index, begin, end, n, answer))

    @property
    def rows(self) -> int:
        """Of all texts."""
        return sum(place.rows for place in self.places)

    def sampled(self, place: Place) -> bool:
        """Whether the answer was drawn and not greedy."""
        return bool(self._shards[place.shard]["sampled"][place.number])

    def traffic_class(self, place: Place) -> str:
        """One of `features.CLASSES`."""
        return str(features.CLASSES[int(self._shards[place.shard]["classes"][place.number])])

    def vocabulary(self, size: int, vocabulary: int) -> Vocabulary:
        """The tokens that the target's laws give most to: `size` of `vocabulary`."""
        mass = torch.zeros(vocabulary)
        for shard in self._shards:
            probs = shard["law_probs"].float() * (shard["weights"] == 1)[:, None]
            mass.index_add_(0, shard["law_ids"].flatten().long(), probs.flatten())
        kept = mass.topk(min(size, vocabulary)).indices.sort().values
        places = torch.full((vocabulary,), -1).index_copy_(0, kept, torch.arange(len(kept)))
        return Vocabulary(kept, places)

    def coverage(self, vocabulary: Vocabulary) -> float:
        """Share of the laws' mass that a draft vocabulary has."""
        kept = total = 0.0
        for shard in self._shards:
            probs = shard["law_probs"].float()
            kept += float((probs * (vocabulary.places[shard["law_ids"].long()] >= 0)).sum())
            total += float(probs.sum())
        return kept / max(total, 1e-9)

    def batches(self, tokens: int, seed: int) -> Iterator[list[Place]]:
        """All texts in a new order, epoch after epoch without end, in batches of about so many rows with padding."""
        draw = random.Random(seed)  # noqa: S311  an order, not a secret
        while True:
            yield from self.epoch(tokens, draw)

    def epoch(self, tokens: int, draw: random.Random) -> list[list[Place]]:
        """All texts once."""
        order = [_seen(place, draw) for place in draw.sample(self.places, len(self.places))]
        batches: list[list[Place]] = []
        for begin in range(0, len(order), _WINDOW):
            batches += _cut(sorted(order[begin : begin + _WINDOW], key=lambda place: place.rows), tokens)
        draw.shuffle(batches)
        return batches

    def batch(self, places: Sequence[Place], vocabulary: Vocabulary) -> Batch:
        """The tensors of some texts."""
        longest = max(place.rows for place in places)
        later = [self._padded(places, name, longest, 1) for name in ("law_ids", "law_probs", "weights")]
        law_ids, full, weights = later[0].long(), later[1].float(), later[2].float()
        ids = vocabulary.places[law_ids]
        return Batch(
            tokens=self._padded(places, "tokens", longest, 1).long(),
            aux=self._padded(places, "aux", longest, 0),
            ids=ids.clamp_min(0),
            probs=full * (ids >= 0),
            weights=weights,
            best=law_ids[..., 0],
            full=full,
        )

    def _padded(self, places: Sequence[Place], name: str, longest: int, offset: int) -> Tensor:
        """[B, longest, ...] of the rows from the offset on."""
        first = self._shards[0][name]
        out = first.new_zeros(len(places), longest, *first.shape[1:])
        for row, place in enumerate(places):
            begin = place.begin + offset
            out[row, : place.rows] = self._shards[place.shard][name][begin : begin + place.rows]
        return out


def _seen(place: Place, draw: random.Random) -> Place:
    if draw.random() < _WHOLE:
        return place
    return place._replace(begin=max(place.begin, place.answer - _PROMPT_ROWS))


def _cut(places: Sequence[Place], tokens: int) -> Iterator[list[Place]]:
    """Rising lengths into batches that hold at most so many rows when padded, or one text."""
    batch: list[Place] = []
    for place in places:
        if batch and place.rows * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
