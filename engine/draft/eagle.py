"""EAGLE heads draft: from what the target has understood of the text, and then from their own guesses at it.

A head's row pairs a token with what was understood of the position before (see engine.heads.eagle). Its key lies in
the token's own place, so that it depends on the text up to there and no further, and a block of the target's that
texts share has one meaning for the head too. Place 0 has no row, and nobody sees it.

    place      0     1     2     3   |  4     5           the text's last token is in place 3
    token      t0    t1    t2    t3  |  d1    d2
    hidden           f0    f1    f2  |  g3    g4          f: kept of the target's forwards; g: the head's own
    says             .     .     d1  |  d2    d3

What the head has missed of a text is computed with the first level, in one forward: after each round the tokens that
were committed, after a pause as many as it lasted, after a prompt all of it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from engine.api import DraftSettings
from engine.batch import RaggedBatch, Span
from engine.draft.base import NO_DRAFT, Ask, Draft
from engine.draft.chains import draw_chains
from engine.draft.features import Reads
from engine.draft.follower import Follower
from engine.draft.tree import (
    Grown,
    Likeliest,
    apart,
    by_shape,
    even_width,
    grow_trees,
    likeliest,
    of_logits,
    tree_span,
)
from engine.heads.eagle import Said
from engine.heads.fused import FusedHead, Growth
from engine.heads.load import LoadedHead, load_eagle
from engine.kv.memory import KVMemory
from engine.model.loader import LoadedModel
from engine.model.runner import Runner
from engine.sequence import Sequence as Seq
from engine.transfer import send
from policies.base import Option

NAME: Final = "eagle"
_LEVELS: Final = 8
_WIDTHS: Final = (1, 2, 4)
_CATCH_UP: Final = (
    2048  # rows that are computed in one step before drafts begin, at most: all texts wait for them
)
# Stands for tokens that the head does not know: never drawn while it knows one that may follow, and a number still
# where a grammar allows none that it knows.
_UNKNOWN: Final = -1e4


@dataclass(frozen=True, slots=True)
class EaglePart:
    """See engine.draft.registry.Part."""

    head: LoadedHead
    target: LoadedModel
    name: str = NAME

    @property
    def weight_bytes(self) -> int:
        """Of the head, what it shares with the target aside."""
        return self.head.weight_bytes

    @property
    def bytes_per_position(self) -> int:
        """Of its own keys and values."""
        return self.head.kv_shape.bytes_per_position(self.target.dtype)

    @property
    def rows_at_once(self) -> int:
        """The rows of one level."""
        return _WIDTHS[-1]

    @property
    def reads(self) -> Reads:
        """What is kept of the target's forward."""
        return Reads(self.head.taps, self.head.width, self.head.features)

    def proposer(self, memory: KVMemory, runner: Runner) -> "EagleProposer":
        """See Part."""
        del runner  # the head has keys of its own
        return EagleProposer(self.name, self.head, self.target, memory)


def load_part(settings: DraftSettings, target: LoadedModel, say: Callable[[str], None]) -> EaglePart:
    """The head that the settings name. Raises HeadError."""
    return EaglePart(load_eagle(Path(settings.head_path), target, say), target)


class EagleProposer:
    """Chains and trees from a head."""

    def __init__(self, name: str, head: LoadedHead, target: LoadedModel, memory: KVMemory) -> None:
        """name: of the kind. memory: the target's, with its features."""
        self.name = name
        self.cost = 0.03 + head.weight_bytes / target.weight_bytes
        self._head = head
        self._vocabulary = target.vocabulary
        self._features = memory.features[name]  # [slots, H]
        self._memory = KVMemory(
            {0: head.kv_shape}, memory.scrap, memory.block_size, target.dtype, target.device, begin=1
        )
        self._runner = Runner(self._memory, head.kernels)
        self._known = None if head.targets is None else head.targets.cpu().numpy()  # [D]
        self._follower = Follower(memory.block_size)

    def options(self, sequence: Seq) -> tuple[Option, ...]:
        """See Proposer. Nothing for a text of one token, of which nothing is understood yet."""
        if len(sequence.tokens) == 1:
            return ()
        return _options(self.name, max(len(sequence.tokens) - 1 - self._start(sequence), 0))

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """See Proposer."""
        drafts = [NO_DRAFT] * len(asks)
        missed = [len(ask.sequence.tokens) - self._start(ask.sequence) for ask in asks]
        ready = self._caught_up(asks, missed)
        for i, draft in zip(ready, self._drawn([asks[i] for i in ready]), strict=True):
            drafts[i] = draft
        return drafts

    def _drawn(self, asks: Sequence[Ask]) -> list[Draft]:
        fused = self._head.fused
        if fused is None:
            return self._by_levels(asks)
        return apart(
            asks,
            lambda ask: _is_plain(ask.sequence),
            lambda plain: self._likeliest_drafts(fused, [asks[i] for i in plain]),
            lambda others: self._by_levels([asks[i] for i in others]),
        )

    def _by_levels(self, asks: Sequence[Ask]) -> list[Draft]:
        return by_shape(
            asks,
            lambda chains: self._chains([asks[i] for i in chains]),
            lambda trees: self._trees([asks[i] for i in trees]),
        )

    def forget(self, request: str) -> None:
        """See Proposer. Its blocks keep what they have, for others that begin alike."""

    def distrust(self, blocks: Sequence[int]) -> None:
        """See Keeper."""
        self._follower.forget(blocks)
        self._memory.clear(blocks)

    def _caught_up(self, asks: Sequence[Ask], missed: Sequence[int]) -> list[int]:
        """Which asks can be answered now. Reads a part of the first text that has to wait: so each has its turn."""
        ready, left = [], _CATCH_UP
        for i in sorted(range(len(asks)), key=missed.__getitem__):
            if missed[i] > left:
                if left:
                    self._read([asks[i]], [self._start(asks[i].sequence) + left])
                break
            ready.append(i)
            left -= missed[i]
        return sorted(ready)

    def _likeliest_drafts(self, head: FusedHead, asks: Sequence[Ask]) -> list[Draft]:
        """For texts that are greedy and that nothing edits: all levels in one call."""
        growths = [Growth(ask.levels, ask.k, even_width(ask)) for ask in asks]
        with self._reading(asks, [len(ask.sequence.tokens) for ask in asks]) as (batch, hidden):
            grown = head.drafts(batch, hidden, self._memory, growths)
        return [Draft.certain(*each) for each in grown]

    def _chains(self, asks: Sequence[Ask]) -> list[Draft]:
        hidden = self._features.new_empty(len(asks), self._head.width)

        def logits_of(active: Sequence[int], drafted: Sequence[list[int]]) -> Tensor:
            mine, at = [asks[i] for i in active], send(active, hidden.device)
            if drafted[0]:
                said = self._go_on(mine, drafted, hidden[at])
            else:
                said = self._read(mine, [len(ask.sequence.tokens) for ask in mine])
            hidden.index_copy_(0, at, said.hidden)
            return self._spread(said.logits)

        return draw_chains(asks, logits_of)

    def _trees(self, asks: Sequence[Ask]) -> list[Draft]:
        outputs: list[Tensor] = []  # of each ask: what its rows handed on so far, [rows, H]

        def likeliest_of(active: Sequence[int], trees: Sequence[Grown], most: int) -> Likeliest:
            mine = [asks[i] for i in active]
            if trees[0].tokens:
                said = self._grow(mine, trees, [outputs[i] for i in active])
                parts = torch.split(said.hidden, [tree.frontier for tree in trees])
                for i, part in zip(active, parts, strict=True):
                    outputs[i] = torch.cat([outputs[i], part])
            else:
                said = self._read(mine, [len(ask.sequence.tokens) for ask in mine])
                outputs.extend(torch.split(said.hidden, 1))
            if all(_is_plain(ask.sequence) for ask in mine):
                return self._likeliest_known(said.logits, most)
            return likeliest(mine, trees, self._spread(said.logits), most)

        return grow_trees(asks, likeliest_of)

    def _start(self, sequence: Seq) -> int:
        """The first place whose row the head has not computed for this text."""
        return max(self._follower.start(sequence), self._memory.begin)

    def _read(self, asks: Sequence[Ask], ends: Sequence[int]) -> Said:
        """Compute the texts' rows below these places that are missing, the last of them in any case."""
        with self._reading(asks, ends) as (batch, hidden):
            return self._run(batch, hidden)

    @contextmanager
    def _reading(self, asks: Sequence[Ask], ends: Sequence[int]) -> Iterator[tuple[RaggedBatch, Tensor]]:
        """The rows to compute, and what was understood before them: [T, H]. They are counted as computed at the end."""
        spans, before = [], list[int]()
        for ask, end in zip(asks, ends, strict=True):
            sequence = ask.sequence
            start = min(self._start(sequence), end - 1)
            self._follower.write(sequence, start, len(sequence.tokens) + ask.k)
            spans.append(Span(sequence.table, start, sequence.tokens[start:end], 1))
            before += sequence.table.slots(start - 1, end - 1)
        yield self._runner.pack(spans), self._features[send(before, self._features.device)]
        for ask, end in zip(asks, ends, strict=True):
            self._follower.reached(ask.sequence, end)

    def _go_on(self, asks: Sequence[Ask], drafted: Sequence[list[int]], hidden: Tensor) -> Said:
        """A level further in each chain. hidden: [B, H], what the rows of the last level handed on."""
        spans = [
            Span(ask.sequence.table, len(ask.sequence.tokens) - 1 + len(tokens), tokens[-1:], 1)
            for ask, tokens in zip(asks, drafted, strict=True)
        ]
        return self._run(self._runner.pack(spans), hidden)

    def _grow(self, asks: Sequence[Ask], trees: Sequence[Grown], outputs: Sequence[Tensor]) -> Said:
        """A level further in each tree, whose nodes so far are computed again: a row needs its ancestors' keys."""
        spans, hidden = [], list[Tensor]()
        for ask, tree, handed_on in zip(asks, trees, outputs, strict=True):
            spans.append(tree_span(ask.sequence, tree))
            before = ask.sequence.table.slot(len(ask.sequence.tokens) - 2)
            hidden += [self._features[before][None], handed_on[[parent + 1 for parent in tree.parents]]]
        return self._run(self._runner.pack(spans), torch.cat(hidden))

    def _run(self, batch: RaggedBatch, hidden: Tensor) -> Said:
        attention = self._runner.attention(batch)
        return self._head.forward(batch.tokens, hidden, batch.positions, attention, batch.logit_rows)

    def _likeliest_known(self, logits: Tensor, most: int) -> Likeliest:
        """Of logits [R, D] that nothing edits: found among the tokens that the head knows, which are few."""
        found = of_logits(logits.nan_to_num(_UNKNOWN, _UNKNOWN, _UNKNOWN), [], most)
        if self._known is None:
            return found
        return Likeliest(self._known[found.tokens], found.logs)

    def _spread(self, logits: Tensor) -> Tensor:
        """[R, D] -> [R, V]: what the head says of the target's tokens. A broken head may say what is no number."""
        logits = logits.nan_to_num(_UNKNOWN, _UNKNOWN, _UNKNOWN)
        if self._head.targets is None:
            return logits
        spread = logits.new_full((len(logits), self._vocabulary), _UNKNOWN)
        return spread.index_copy_(1, self._head.targets, logits)


@lru_cache(maxsize=1 << 12)
def _options(name: str, owed: int) -> tuple[Option, ...]:
    """Asked for each text in each step, of which few owe unlike many tokens."""
    return tuple(Option(name, _LEVELS, width=width, owed=owed) for width in _WIDTHS)


def _is_plain(sequence: Seq) -> bool:
    """Whether what the head finds likeliest is the draft, whatever was drafted before."""
    return sequence.sampling.temperature == 0 and sequence.edits.idle and sequence.grammar is None
