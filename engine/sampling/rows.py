"""What a row of logits follows, and the edits that this calls for. `engine.verify.law.edited` is their specification.

A verify has k + 1 rows for a request, and each follows another text: the committed one and the drafted tokens before
the row. Edits look at that text, so they are made row by row; rows that no parameter asks to edit cost nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.api import SamplingParams


@dataclass(frozen=True, slots=True)
class Row:
    """One row of logits."""

    sampling: SamplingParams
    prompt: Sequence[int]
    text: Sequence[int]  # generated and committed
    drafted: Sequence[int]  # on the way from the committed text to this row
    allowed: Tensor | None = None  # [ceil(V / 32)] int32, bit t: the grammar allows token t here


def edit(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """[R, V], one of `rows` each -> the same, edited; a copy where anything changed."""
    edited = logits
    for i, row in enumerate(rows):
        if row.allowed is not None:
            edited = logits.clone() if edited is logits else edited
            edited[i].masked_fill_(~_unpacked(row.allowed, logits.shape[1]), -torch.inf)
    return edited


def _unpacked(bits: Tensor, size: int) -> Tensor:
    """[ceil(size / 32)] int32 -> [size] bool."""
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    return ((bits[:, None] >> shifts) & 1).flatten()[:size].bool()
