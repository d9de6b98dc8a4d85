"""How much of a head's drafts the target takes, by position, found along texts that the target wrote itself.

A round begins at every row of an answer. Where all drafted tokens so far are the text's own, the next step of the head
in its dense form is what it would draft; so position j is examined where positions before it were accepted. Rounds as
they are played begin behind a rejected token, where the next one is harder: there, position 1 shows a little less.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.train.corpus import Batch, Corpus, Place, Vocabulary
from engine.train.guess import Steps

POSITIONS = 6
TEMPERATURE = 0.7


class Count(NamedTuple):
    """By position."""

    examined: Tensor  # [POSITIONS] float64
    accepted: Tensor  # [POSITIONS] float64

    def plus(self, other: "Count") -> "Count":
        """Of both."""
        return Count(self.examined + other.examined, self.accepted + other.accepted)

    @property
    def rates(self) -> list[float]:
        """Conditional acceptance: of what was examined."""
        return [round(rate, 4) for rate in (self.accepted / self.examined.clamp_min(1e-9)).tolist()]


Table = dict[str, dict[str, list[float]]]
"""Conditional acceptance by position, by class, by "greedy" and "sampled"."""


@torch.no_grad()
def table(
    head: Steps, corpus: Corpus, vocabulary: Vocabulary, embedding: Tensor, places: Sequence[Place]
) -> Table:
    """See the module. embedding: [V, H], the target's."""
    counts: dict[tuple[str, str], Count] = defaultdict(_nothing)
    by_kind: dict[tuple[str, bool], list[Place]] = defaultdict(list)
    for place in places:
        by_kind[corpus.traffic_class(place), corpus.sampled(place)].append(place)
    for (name, sampled), group in by_kind.items():
        for begin in range(0, len(group), 8):
            batch = corpus.batch(group[begin : begin + 8], vocabulary)
            with torch.autocast("cpu", torch.bfloat16):
                found = count(head, batch, vocabulary, embedding, sampled=sampled)
            for key in (name, "all"):
                kind = "sampled" if sampled else "greedy"
                counts[key, kind] = counts[key, kind].plus(found)
    tables: Table = defaultdict(dict)
    for (name, kind), each in sorted(counts.items()):
        tables[name][kind] = each.rates
    return dict(tables)


def _nothing() -> Count:
    return Count(torch.zeros(POSITIONS, dtype=torch.float64), torch.zeros(POSITIONS, dtype=torch.float64))


def count(head: Steps, batch: Batch, vocabulary: Vocabulary, embedding: Tensor, *, sampled: bool) -> Count:
    """Of one batch, all of it greedy or all of it sampled."""
    embedded = embedding[batch.tokens]
    answer = (batch.weights == 1).double()
    alive, totals = answer, _nothing()
    for step, guess in enumerate(head(batch.aux, embedded, POSITIONS)):
        logits = (guess.rows @ guess.matrix.T).float()
        taken = _overlap(logits, batch) if sampled else _matches(logits, batch, vocabulary)
        if step:
            alive = torch.nn.functional.pad(alive, (1, 0))[:, :-1] * answer
        totals.examined[step] = alive.sum()
        alive = alive * taken.double()
        totals.accepted[step] = alive.sum()
    return totals


def _matches(logits: Tensor, batch: Batch, vocabulary: Vocabulary) -> Tensor:
    """[B, L]: the head's likeliest token is the target's."""
    return vocabulary.kept[logits.argmax(-1)] == batch.best


def _overlap(logits: Tensor, batch: Batch) -> Tensor:
    """[B, L]: the mass that both laws share at the temperature, which is the chance of acceptance."""
    ours = (logits / TEMPERATURE).softmax(-1).gather(-1, batch.ids) * (batch.probs > 0)
    theirs = batch.full ** (1 / TEMPERATURE)
    theirs = theirs / theirs.sum(-1, keepdim=True).clamp_min(1e-9) * (batch.probs > 0)
    return torch.minimum(ours, theirs).sum(-1)
