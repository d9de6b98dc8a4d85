"""How one forward's ragged rows are laid out for attention; made once per step, used by every layer.

Spans of similar context go together. In a group of B spans, rows are padded to R and keys to S = blocks * block_size:

    span a  rows r0 r1 r2 | keys 0 1 2 3 4 .          mask of a:  r0  o o o . . .
    span b  rows r0 -  -  | keys 0 1 . . . .                      r1  o o o o . .
                                                                  r2  o o o o o .
A padded row repeats row 0 (so that no row is masked whole) and its result is dropped. What a tree's rows see is drawn
in engine.batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from engine.batch import RaggedBatch, Span
from engine.draft.shape import sights

# Spans share a group while the shortest has at least this share of the longest one's keys and rows: padding costs
# reads and multiplications, a further group costs another kernel launch per layer.
_KEYS_SHARE = 0.5
PREFILL_ROWS = 32  # a longer span attends alone


@dataclass(frozen=True, slots=True)
class Trees:
    """What is different in a group with trees: there a key's place says neither its position nor who sees it."""

    positions: Tensor  # [B, S] int64: of each key in its sequence
    seen: Tensor  # [B, R, S] bool: False for the keys of branches that the row is not on


@dataclass(frozen=True, slots=True)
class Group:
    """Spans that attend in one call."""

    rows: Tensor | None  # [B * R] int64: packed row of each padded row; None: the packed rows, as they are
    blocks: Tensor  # [B, N] int64
    positions: Tensor  # [B, R] int64: position of each padded row
    trees: Trees | None = None
    _masks: dict[tuple[int | None, int], Tensor] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """R."""
        return self.positions.shape[1]

    def mask(
        self, window: int | None, share: int, block_size: int, dtype: torch.dtype, begin: int = 0
    ) -> Tensor:
        """[B, 1, share * R, S] additive: 0 where the row may look, -inf elsewhere, once for each of `share` heads.

        A window of w lets a row see w positions, its own included. begin: the first place that holds a key.
        """
        if (window, share) not in self._masks:
            keys = torch.arange(self.blocks.shape[1] * block_size, device=self.blocks.device)
            if self.trees is not None:
                keys = self.trees.positions[:, None]  # [B, 1, S]
            distance = self.positions[:, :, None] - keys  # [B, R, S]
            seen = distance >= 0
            seen[:, :, :begin] = False
            if self.trees is not None:
                seen &= self.trees.seen
            if window is not None:
                seen &= distance < window
            mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
            self._masks[window, share] = mask[:, None].repeat(1, 1, share, 1)
        return self._masks[window, share]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Groups of one forward, and the way back from their padded rows to the packed ones."""

    groups: tuple[Group, ...]
    # [T] int64: each packed row's place in the groups' rows, concatenated; None where they are the same
    unpad: Tensor | None


def plan_attention(batch: RaggedBatch, block_size: int) -> AttentionPlan:
    """Group a batch's spans."""
    device = batch.slots.device
    starts = offsets(batch.spans)
    padded: list[int] = []  # packed row of each padded row, over all groups
    unpad = [0] * batch.rows
    groups: list[Group] = []
    for members in _grouped(batch.spans):
        spans = [batch.spans[i] for i in members]
        depth = max(len(span.tokens) for span in spans)  # R
        blocks = [span.blocks(block_size) for span in spans]
        rows = [_padded_rows(starts[i], len(batch.spans[i].tokens), depth) for i in members]
        for i, own in zip(members, rows, strict=True):
            for row in range(len(batch.spans[i].tokens)):
                unpad[starts[i] + row] = len(padded) + row
            padded += own
        table = torch.tensor(_padded_blocks(blocks), device=device)
        index = torch.tensor(rows, device=device)
        trees = _trees(spans, depth, table.shape[1] * block_size, device)
        groups.append(Group(index.flatten(), table, batch.positions[0][index], trees))
    if padded != list(range(batch.rows)):
        return AttentionPlan(tuple(groups), torch.tensor(unpad, device=device))
    if len(groups) == 1:  # plain decoding: nothing is padded, nothing moves
        groups = [replace(groups[0], rows=None)]
    return AttentionPlan(tuple(groups), None)


def single_group(span: Span, start: int, block_size: int) -> Group:
    """A group of one span whose packed rows begin at `start`."""
    rows = torch.arange(start, start + len(span.tokens))
    table = torch.tensor([span.blocks(block_size)])
    trees = _trees([span], len(span.tokens), table.shape[1] * block_size, table.device)
    return Group(rows, table, torch.tensor(span.positions)[None], trees)


def offsets(spans: Sequence[Span]) -> list[int]:
    """First packed row of each span."""
    return list(accumulate((len(span.tokens) for span in spans[:-1]), initial=0))


def _grouped(spans: Sequence[Span]) -> list[list[int]]:
    """Indices of spans, by group: long prefill spans alone, the others by falling context, in order within a group."""
    groups = [[i] for i, span in enumerate(spans) if len(span.tokens) > PREFILL_ROWS]
    short = [i for i, span in enumerate(spans) if len(span.tokens) <= PREFILL_ROWS]
    current: list[int] = []
    longest = 0
    for i in sorted(short, key=lambda i: -spans[i].end):
        if current and spans[i].end < _KEYS_SHARE * longest:
            groups.append(sorted(current))
            current = []
        if not current:
            longest = spans[i].end
        current.append(i)
    return [*groups, sorted(current)] if current else groups


def _trees(spans: Sequence[Span], depth: int, keys: int, device: torch.device) -> Trees | None:
    """For a group of R = depth, S = keys; None if it is all chains."""
    if all(span.parents is None for span in spans):
        return None
    positions = torch.arange(keys).repeat(len(spans), 1)
    seen = torch.ones(len(spans), depth, keys, dtype=torch.bool)
    for b, span in enumerate(spans):
        if span.parents is None:
            continue
        own = slice(span.start, span.end)
        positions[b, own] = torch.tensor(span.positions)
        rows = sights(span.parents)
        rows += rows[:1] * (depth - len(rows))  # padded rows repeat row 0
        seen[b, :, own] = torch.tensor(
            [[bool(row >> key & 1) for key in range(len(span.tokens))] for row in rows]
        )
    return Trees(positions.to(device), seen.to(device))


def _padded_rows(offset: int, length: int, depth: int) -> list[int]:
    return [*range(offset, offset + length), *[offset] * (depth - length)]


def _padded_blocks(held: Sequence[list[int]]) -> list[list[int]]:
    """Each row filled up to the longest with its own first block, whose keys there are masked."""
    longest = max(map(len, held))  # N
    return [blocks + blocks[:1] * (longest - len(blocks)) for blocks in held]
