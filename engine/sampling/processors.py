"""Logit processors on all rows of a step at once. `engine.verify.law.processed` is their specification."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.api import SamplingParams

_CANDIDATES = 256
_ALL = 2**31  # beyond any vocabulary; a larger top_k would not fit an int64
COLDEST = 1e-30  # float32 holds no temperature much below, and the law is the argmax long before


@dataclass(frozen=True, slots=True)
class RowParams:
    """Sampling parameters of N rows, as columns."""

    temperature: Tensor  # [N] float32, > 0
    min_p: Tensor  # [N] float32, 0 keeps all
    top_k: Tensor  # [N] int64, 0 keeps all
    top_p: Tensor  # [N] float32

    @classmethod
    def of(cls, params: list[SamplingParams], device: torch.device) -> "RowParams":
        """One row per entry; all must sample (temperature above 0)."""
        return cls(
            torch.tensor([p.temperature for p in params], dtype=torch.float32, device=device),
            torch.tensor([p.min_p for p in params], dtype=torch.float32, device=device),
            torch.tensor([min(p.top_k, _ALL) for p in params], dtype=torch.int64, device=device),
            torch.tensor([p.top_p for p in params], dtype=torch.float32, device=device),
        )


def probabilities(logits: Tensor, params: RowParams) -> Tensor:
    """[N, V] logits -> [N, V] float32 probabilities: temperature, min-p, top-k, top-p, each row by its own."""
    wide = logits.float()
    # the maximum first: dividing it by a tiny temperature would overflow
    scaled = (wide - wide.amax(dim=-1, keepdim=True)) / params.temperature[:, None].clamp(min=COLDEST)
    _keep_min_p(scaled, params.min_p)
    _keep_top_k(scaled, params.top_k)
    probs = scaled.softmax(dim=-1)
    return _keep_top_p(probs, params.top_p)


def _keep_min_p(scaled: Tensor, min_p: Tensor) -> None:
    """In place: -inf below this share of the likeliest token's probability. scaled: each row's maximum is 0."""
    rows = (min_p > 0).nonzero().squeeze(1)
    if len(rows) > 0:
        scaled[rows] = scaled[rows].masked_fill(scaled[rows] < min_p[rows].log()[:, None], -torch.inf)


def _keep_top_k(scaled: Tensor, top_k: Tensor) -> None:
    """In place: -inf below the k-th largest value of each row. Ties with it stay."""
    vocabulary = scaled.shape[1]
    wanted = torch.where((top_k > 0) & (top_k < vocabulary), top_k, 0)
    rows = wanted.nonzero().squeeze(1)
    if len(rows) == 0:
        return
    k = wanted[rows]
    largest = scaled[rows].topk(int(k.max()), dim=-1).values  # [n, max k], falling
    last_kept = largest.gather(1, k[:, None] - 1)  # [n, 1]
    scaled[rows] = scaled[rows].masked_fill(scaled[rows] < last_kept, -torch.inf)


def _keep_top_p(probs: Tensor, top_p: Tensor) -> Tensor:
    """[N, V] -> [N, V]: zero below the smallest set that reaches top_p, then normalised. Ties with its last stay."""
    rows = (top_p < 1).nonzero().squeeze(1)
    if len(rows) == 0:
        return probs
    selected, bound = probs[rows], top_p[rows]
    last_kept = _threshold(selected, bound)
    selected = selected.masked_fill(selected < last_kept[:, None], 0.0)
    probs[rows] = selected / selected.sum(dim=-1, keepdim=True)
    return probs


def _threshold(probs: Tensor, top_p: Tensor) -> Tensor:
    """[n, V], [n] -> [n]: the probability of the last token of the smallest set that reaches top_p.

    Most rows need a handful of tokens: a short top-k settles them, and only the flat rows pay for a whole sort.
    """
    short = min(_CANDIDATES, probs.shape[1])
    candidates = probs.topk(short, dim=-1).values
    threshold, settled = _cut(candidates, top_p)
    flat = (~settled).nonzero().squeeze(1)
    if len(flat) > 0:
        threshold[flat], _ = _cut(probs[flat].sort(dim=-1, descending=True).values, top_p[flat])
    return threshold


def _cut(falling: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """[n, m] falling probabilities -> (the last one needed [n], whether the m of them reach top_p [n])."""
    cumulative = falling.double().cumsum(dim=-1)
    needed = (cumulative < top_p.double()[:, None]).sum(dim=-1)
    settled = needed < falling.shape[1]
    return falling.gather(1, needed.clamp(max=falling.shape[1] - 1)[:, None]).squeeze(1), settled
