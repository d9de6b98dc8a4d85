"""How one forward's ragged rows are laid out for attention; made once per step, used by every layer.

Spans of similar context go together. In a group of B spans, rows are padded to R and keys to S = blocks * block_size:

    span a  rows r0 r1 r2 | keys 0 1 2 3 4 .          mask of a:  r0  o o o . . .
    span b  rows r0 -  -  | keys 0 1 . . . .                      r1  o o o o . .
                                                                  r2  o o o o o .
A padded row repeats row 0 (so that no row is masked whole) and its result is dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.batch import RaggedBatch, Span

# Spans share a group while the shortest has at least this share of the longest one's keys and rows: padding costs
# reads and multiplications, a further group costs another kernel launch per layer.
_KEYS_SHARE = 0.5
_PREFILL_ROWS = 32


@dataclass(frozen=True, slots=True)
class Group:
    """Spans that attend in one call."""

    rows: Tensor  # [B * R] int64: packed row of each padded row
    blocks: Tensor  # [B, N] int64
    positions: Tensor  # [B, R] int64: position of each padded row
    _masks: dict[int | None, Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, block_size: int, dtype: torch.dtype) -> Tensor:
        """[B, 1, R, S] additive: 0 where the row may look, -inf elsewhere. A window of w lets it see w positions."""
        if window not in self._masks:
            keys = torch.arange(self.blocks.shape[1] * block_size, device=self.rows.device)
            distance = self.positions[:, :, None] - keys  # [B, R, S]
            seen = distance >= 0
            if window is not None:
                seen &= distance < window
            mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
            self._masks[window] = mask[:, None]
        return self._masks[window]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Groups of one forward, and the way back from their padded rows to the packed ones."""

    groups: tuple[Group, ...]
    unpad: Tensor  # [T] int64: index of each packed row in the groups' padded rows, concatenated


def plan_attention(batch: RaggedBatch, block_size: int) -> AttentionPlan:
    """Group a batch's spans."""
    device = batch.slots.device
    offsets = _offsets(batch.spans)
    unpad = torch.zeros(batch.rows, dtype=torch.int64)
    groups: list[Group] = []
    base = 0
    for members in _grouped(batch.spans):
        spans = [batch.spans[i] for i in members]
        depth = max(len(span.tokens) for span in spans)  # R
        blocks = max(-(-span.end // block_size) for span in spans)  # N
        rows = torch.tensor([_padded_rows(offsets[i], len(batch.spans[i].tokens), depth) for i in members])
        table = torch.tensor([_padded_blocks(span, blocks, block_size) for span in spans])
        positions = batch.positions[0].cpu()[rows]
        groups.append(Group(rows.flatten().to(device), table.to(device), positions.to(device)))
        for row, i in enumerate(members):
            length = len(batch.spans[i].tokens)
            start = base + row * depth
            unpad[offsets[i] : offsets[i] + length] = torch.arange(start, start + length)
        base += len(members) * depth
    return AttentionPlan(tuple(groups), unpad.to(device))


def _offsets(spans: Sequence[Span]) -> list[int]:
    offsets, total = [], 0
    for span in spans:
        offsets.append(total)
        total += len(span.tokens)
    return offsets


def _grouped(spans: Sequence[Span]) -> list[list[int]]:
    """Indices of spans, by group. Long prefill spans go alone, the others by falling context."""
    groups = [[i] for i, span in enumerate(spans) if len(span.tokens) > _PREFILL_ROWS]
    short = sorted(
        (i for i, span in enumerate(spans) if len(span.tokens) <= _PREFILL_ROWS), key=lambda i: -spans[i].end
    )
    current: list[int] = []
    for i in short:
        if current and spans[i].end < _KEYS_SHARE * spans[current[0]].end:
            groups.append(current)
            current = []
        current.append(i)
    return [*groups, current] if current else groups


def _padded_rows(offset: int, length: int, depth: int) -> list[int]:
    return [*range(offset, offset + length), *[offset] * (depth - length)]


def _padded_blocks(span: Span, count: int, block_size: int) -> list[int]:
    held = span.table.blocks[: -(-span.end // block_size)]
    return held + held[:1] * (count - len(held))
