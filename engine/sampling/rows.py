"""What a row of logits follows, and the edits that this calls for. `engine.verify.law.edited` is their specification.

A verify has k + 1 rows for a request, and each follows another text: the committed one and the drafted tokens before
the row. Edits look at that text, so they are made row by row, but for all rows of a step at once: what they change is
a list of cells (row, token) of the logits. Rows that no parameter asks to edit cost nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.api import SamplingParams
from engine.sampling.edits import Edits, Tokens
from engine.transfer import send


@dataclass(frozen=True, slots=True)
class Row:
    """One row of logits."""

    edits: Edits  # of the request, up to date with its committed text
    drafted: Sequence[int] = ()  # on the way from the committed text to this row
    allowed: Tensor | None = None  # [ceil(V / 32)] int32, bit t: the grammar allows token t here

    @property
    def idle(self) -> bool:
        """Whether it stays as it is."""
        return self.allowed is None and self.edits.idle


PLAIN = Row(Edits(SamplingParams(max_tokens=1)))


class _Cells(NamedTuple):
    """N places in the logits, each once."""

    rows: Tensor  # [N] int64
    tokens: Tensor  # [N] int64


Touched = Sequence[tuple[int, Row]]


def edit(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """[R, V], one of `rows` each -> the same, edited; a float32 copy where anything changed.

    A row may end with nothing but -inf: its parameters exclude each other there, and no token can be drawn.
    """
    touched = [(i, row) for i, row in enumerate(rows) if not row.idle]
    if not touched:
        return logits
    edited = logits.to(torch.float32, copy=True)
    _add_bias(edited, touched)
    _keep_allowed(edited, touched)
    _ban(edited, touched)
    _mask(edited, touched)
    _put_off_ends(edited, touched)
    _penalise(edited, touched)
    return edited


def _add_bias(logits: Tensor, touched: Touched) -> None:
    biased = [(i, row.edits) for i, row in touched if len(row.edits.bias)]
    if biased:
        cells = _cells([(i, edits.bias) for i, edits in biased], logits.device)
        logits[cells] += _column([edits.bias_values for _, edits in biased], logits.device)


def _keep_allowed(logits: Tensor, touched: Touched) -> None:
    confined = [(i, row.edits.allowed) for i, row in touched if row.edits.allowed is not None]
    if confined:
        cells = _cells(confined, logits.device)
        kept = logits[cells]
        logits[send([i for i, _ in confined], logits.device)] = -torch.inf
        logits[cells] = kept


def _ban(logits: Tensor, touched: Touched) -> None:
    banned = [(i, row.edits.banned) for i, row in touched if len(row.edits.banned)]
    if banned:
        logits[_cells(banned, logits.device)] = -torch.inf


def _mask(logits: Tensor, touched: Touched) -> None:
    """By grammars."""
    masked = [(i, row.allowed) for i, row in touched if row.allowed is not None]
    if masked:
        rows = send([i for i, _ in masked], logits.device)
        bits = send(torch.stack([allowed for _, allowed in masked]), logits.device)
        logits[rows] = logits[rows].masked_fill(~_unpacked(bits, logits.shape[1]), -torch.inf)


def _put_off_ends(logits: Tensor, touched: Touched) -> None:
    """No end before min_tokens, except where nothing else is left."""
    early = [
        (i, row.edits.ends)
        for i, row in touched
        if row.edits.generated + len(row.drafted) < row.edits.sampling.min_tokens
    ]
    if not early:
        return
    cells, rows = _cells(early, logits.device), send([i for i, _ in early], logits.device)
    ends = logits[cells]
    logits[cells] = -torch.inf
    stuck = logits[rows].amax(dim=-1) == -torch.inf
    own = np.repeat(
        np.arange(len(early)), [len(tokens) for _, tokens in early]
    )  # each cell's row among these
    logits[cells] = torch.where(stuck[send(own, logits.device)], ends, -torch.inf)


def _penalise(logits: Tensor, touched: Touched) -> None:
    penalised = [
        (i, row.edits.sampling, *row.edits.counts.after(row.drafted))
        for i, row in touched
        if row.edits.counts is not None
    ]
    if not penalised:
        return
    device = logits.device
    cells = _cells([(i, tokens) for i, _, tokens, _ in penalised], device)
    times = _column([times for _, _, _, times in penalised], device)
    lengths = [len(tokens) for _, _, tokens, _ in penalised]
    factor = _spread([sampling.repetition_penalty for _, sampling, _, _ in penalised], lengths, device)
    presence = _spread([sampling.presence_penalty for _, sampling, _, _ in penalised], lengths, device)
    frequency = _spread([sampling.frequency_penalty for _, sampling, _, _ in penalised], lengths, device)
    values = logits[cells]
    values = torch.where(values > 0, values / factor, values * factor)
    logits[cells] = values - presence * (times > 0) - frequency * times


def _cells(wanted: Sequence[tuple[int, Tokens]], device: torch.device) -> _Cells:
    """Some tokens of some rows."""
    rows = np.repeat([i for i, _ in wanted], [len(tokens) for _, tokens in wanted])
    tokens = np.concatenate([tokens for _, tokens in wanted])
    return _Cells(send(rows, device), send(tokens, device))


def _column(parts: Sequence[NDArray[np.float32]], device: torch.device) -> Tensor:
    """Parts of cells' values, one after another: [N] float32."""
    return send(np.concatenate(parts), device)


def _spread(values: Sequence[float], lengths: Sequence[int], device: torch.device) -> Tensor:
    """One value per row -> one per cell: [N] float32."""
    return send(np.repeat(np.array(values, dtype=np.float32), lengths), device)


def _unpacked(bits: Tensor, size: int) -> Tensor:
    """[N, ceil(size / 32)] int32 -> [N, size] bool."""
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    return ((bits[..., None] >> shifts) & 1).flatten(1)[:, :size].bool()
