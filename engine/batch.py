"""The ragged batch: rows of many sequences packed one after another, without padding.

sequence   | a  a  a | b | c  c  c  c  c |       a verifies 2 drafted tokens, b decodes, c is in prefill
tokens     [1, T]                                T = 9
positions  [1, T]    of each row in its own sequence
slots      [T]       where each row's key and value go
logit_rows [R]       rows whose logits are wanted: a's 3, b's 1, and c's last if its prompt ends here

A span that verifies a tree has its rows in consecutive slots like any other; their positions are those of the tree's
levels, so that siblings share one, and each row sees the committed keys, its ancestors and itself:

    parents -1 0 0 -1        slot  position  sees  0 1 2 | 3 4 5 6 7
                      root      3         3        o o o | o . . . .
    root -+- 0 -+- 1  0         4         4        o o o | o o . . .
          |     +- 2  1         5         5        o o o | o o o . .
          +- 3        2         6         5        o o o | o o . o .
                      3         7         4        o o o | o . . . o
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.draft.shape import depths
from engine.kv.table import BlockTable
from engine.transfer import upload


class Span(NamedTuple):
    """Rows of one sequence to compute in one forward, in consecutive places of its table."""

    table: BlockTable
    start: int
    tokens: list[int]
    logits: int  # the last so many rows are wanted
    parents: Sequence[int] | None = None  # of a tree's nodes; its root is the first row. None: a chain

    @property
    def end(self) -> int:
        """Place after the last row's: the number of keys that the span reads, its own included."""
        return self.start + len(self.tokens)

    @property
    def positions(self) -> Sequence[int]:
        """Of each row in its sequence."""
        if self.parents is None:
            return range(self.start, self.end)
        return [self.start, *(self.start + depth for depth in depths(self.parents))]

    def blocks(self, block_size: int) -> list[int]:
        """The blocks that hold the keys up to `end`."""
        return self.table.blocks[: -(-self.end // block_size)]


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """One forward's input."""

    tokens: Tensor  # [1, T] int64
    positions: Tensor  # [1, T] int64
    slots: Tensor  # [T] int64
    logit_rows: Tensor  # [R] int64
    spans: tuple[Span, ...]
    padding: int = 0  # the last so many rows belong to nobody; their spans are of one row each

    @property
    def rows(self) -> int:
        """T, padding included."""
        return self.tokens.shape[1]

    @property
    def has_trees(self) -> bool:
        """Whether some rows see less than all before them."""
        return any(span.parents is not None for span in self.spans)

    @property
    def real_rows(self) -> int:
        """Rows of sequences."""
        return self.rows - self.padding


def pack(spans: Sequence[Span], device: torch.device) -> RaggedBatch:
    """Pack spans in order. Their places must be reserved in their tables."""
    tokens = [token for span in spans for token in span.tokens]
    positions = [position for span in spans for position in span.positions]
    slots = [slot for span in spans for slot in span.table.slots(span.start, span.end)]
    ends = np.cumsum([len(span.tokens) for span in spans])
    logit_rows = [row for span, end in zip(spans, ends, strict=True) for row in range(end - span.logits, end)]

    columns = upload([tokens, positions, slots, logit_rows], device)
    return RaggedBatch(columns[0][None], columns[1][None], columns[2], columns[3], tuple(spans))
