"""Chains drawn token by token from what a draft says of the next one: all texts at once, a pass for each level."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.draft.base import Ask, Draft
from engine.grammar.state import Standing
from engine.sampling.processors import RowParams, probabilities
from engine.sampling.rng import Purpose, uniforms
from engine.sampling.rows import Row, edit
from engine.sequence import Sequence as Seq
from engine.transfer import send
from engine.verify.draw import draw

LogitsOf = Callable[[Sequence[int], Sequence[list[int]]], Tensor]
"""(which asks, what was drafted for each of them so far) -> logits of the token after that: [B, V]."""


def draw_chains(asks: Sequence[Ask], logits_of: LogitsOf) -> list[Draft]:
    """A chain for each ask, with laws where the request samples, and certain where it is greedy.

    The draft's rows are edited, masked by grammars and cut as the target's are. Calls `logits_of` once for each level.
    """
    tokens: list[list[int]] = [[] for _ in asks]
    laws: list[list[Tensor]] = [[] for _ in asks]
    for level in range(max((ask.levels for ask in asks), default=0)):
        active = [i for i, ask in enumerate(asks) if ask.levels > level and _goes_on(ask, tokens[i])]
        if not active:
            break
        logits = logits_of(active, [tokens[i] for i in active])
        _extend([asks[i] for i in active], logits, [tokens[i] for i in active], [laws[i] for i in active])
    return [
        Draft(drafted, torch.stack(law) if law else None) for drafted, law in zip(tokens, laws, strict=True)
    ]


def _extend(
    asks: Sequence[Ask], logits: Tensor, tokens: Sequence[list[int]], laws: Sequence[list[Tensor]]
) -> None:
    """Append one token to each draft, and its law where the request samples. logits: [B, V]."""
    rows = [
        Row(ask.sequence.edits, drafted, allowed(ask, drafted))
        for ask, drafted in zip(asks, tokens, strict=True)
    ]
    logits = edit(logits.nan_to_num(neginf=-torch.inf), rows)  # a broken draft may say what is no number
    said = logits.argmax(dim=-1)
    sampled = [i for i, ask in enumerate(asks) if ask.sequence.sampling.temperature > 0]
    if sampled:
        at = send(sampled, logits.device)
        sequences = [asks[i].sequence for i in sampled]
        q = probabilities(logits[at], RowParams.of([s.sampling for s in sequences], logits.device))
        coins = _coins(sequences, [len(tokens[i]) for i in sampled])
        said.index_copy_(0, at, draw(q, send(coins, logits.device)))
        for i, law in zip(sampled, q, strict=True):
            laws[i].append(law)
    for drafted, token in zip(tokens, said.tolist(), strict=True):  # the one look at the device in a pass
        drafted.append(token)


def _coins(sequences: Sequence[Seq], nodes: Sequence[int]) -> NDArray[np.float64]:
    """Of these nodes of the sequences' drafts: [N]."""
    seeds = np.array([sequence.sampling.seed for sequence in sequences], dtype=np.uint64)
    rounds = np.array([len(sequence.tokens) for sequence in sequences], dtype=np.int64)
    return uniforms(seeds, rounds, Purpose.DRAFT, np.array(nodes, dtype=np.int64))


def allowed(ask: Ask, drafted: Sequence[int]) -> Tensor | None:
    """What a grammar lets follow a draft: [ceil(V / 32)] int32."""
    grammar = ask.sequence.grammar
    return None if grammar is None else grammar.spot(drafted).allowed


def _goes_on(ask: Ask, drafted: Sequence[int]) -> bool:
    """Whether a text may have more tokens after those drafted."""
    grammar = ask.sequence.grammar
    return grammar is None or grammar.spot(drafted).standing is Standing.OPEN
