"""Self-speculation: the target with some of its layers left out drafts for the whole of it.

Source: Zhang et al., "Draft & verify: lossless large language model acceleration via self-speculative decoding",
ACL 2024. The draft reads the target's own keys and values of the committed positions and writes those of its guesses
into the positions reserved for them, where verification overwrites them. So it needs no cache of its own, and nothing
goes stale while drafting is off.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.batch import Span
from engine.draft.base import Ask, Draft
from engine.grammar.state import Standing
from engine.model.loader import LoadedModel
from engine.model.runner import Runner
from engine.sampling.processors import RowParams, probabilities
from engine.sampling.rng import Purpose, uniforms
from engine.sampling.rows import Row, edit
from engine.sequence import Sequence as Seq
from engine.transfer import send
from engine.verify.draw import draw


def default_skip(layers: int) -> tuple[int, ...]:
    """Every second layer of the middle half: the first layers build the features, the last ones choose the words."""
    quarter = layers // 4
    return tuple(range(quarter, layers - quarter, 2))


class LayerSkipProposer:
    """Drafts token by token, all asking sequences at once."""

    name = "layer-skip"

    def __init__(self, target: LoadedModel, runner: Runner, skip: tuple[int, ...]) -> None:
        self._runner = runner
        self._draft = target.forward.without_layers(skip)
        self.cost = 1 - len(set(skip)) / len(
            target.shapes
        )  # a pass is a plain step of the layers that are left

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """See Proposer. Each pass drafts one more token for every sequence that wants one."""
        tokens: list[list[int]] = [[] for _ in asks]
        laws: list[list[Tensor]] = [[] for _ in asks]
        for depth in range(max((ask.k for ask in asks), default=0)):
            active = [i for i, ask in enumerate(asks) if ask.k > depth and _goes_on(ask, tokens[i])]
            if not active:
                break
            logits = self._forward([asks[i] for i in active], [tokens[i] for i in active])
            self._extend(
                [asks[i] for i in active], logits, [tokens[i] for i in active], [laws[i] for i in active]
            )
        return [
            Draft(drafted, torch.stack(law) if law else None)
            for drafted, law in zip(tokens, laws, strict=True)
        ]

    def forget(self, request: str) -> None:
        """See Proposer. There is no state to drop."""

    def _forward(self, asks: Sequence[Ask], drafted: Sequence[list[int]]) -> Tensor:
        """Logits after the last token of each sequence, drafted ones included: [B, V]."""
        spans = []
        for ask, guesses in zip(asks, drafted, strict=True):
            sequence = ask.sequence
            last = guesses[-1] if guesses else sequence.tokens[-1]
            spans.append(Span(sequence.table, len(sequence.tokens) - 1 + len(guesses), [last], 1))
        return self._runner.run(self._draft, self._runner.pack(spans))

    def _extend(
        self, asks: Sequence[Ask], logits: Tensor, tokens: Sequence[list[int]], laws: Sequence[list[Tensor]]
    ) -> None:
        """Append one token to each draft, and its law where the request samples. logits: [B, V]."""
        rows = [
            Row(ask.sequence.edits, drafted, _allowed(ask, drafted))
            for ask, drafted in zip(asks, tokens, strict=True)
        ]
        logits = edit(logits, rows)
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


def _allowed(ask: Ask, drafted: Sequence[int]) -> Tensor | None:
    """What a grammar lets follow a draft: [ceil(V / 32)] int32."""
    grammar = ask.sequence.grammar
    return None if grammar is None else grammar.spot(drafted).allowed


def _goes_on(ask: Ask, drafted: Sequence[int]) -> bool:
    """Whether a text may have more tokens after those drafted."""
    grammar = ask.sequence.grammar
    return grammar is None or grammar.spot(drafted).standing is Standing.OPEN
