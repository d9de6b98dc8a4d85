"""Logit processors on all rows of a step at once. `engine.verify.law.processed` is their specification."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from engine.api import SamplingParams
from engine.transfer import send

_CANDIDATES = 256
_ALL = 2**31  # beyond any vocabulary; a larger top_k would not fit an int64
COLDEST = 1e-30  # float32 holds no temperature much below, and the law is the argmax long before


class Cut(NamedTuple):
    """The rows that a parameter cuts. Found on the host: to look for them on the device would be to wait for it."""

    rows: Tensor  # [n] int64
    bounds: Tensor  # [n], the parameter of each
    most: float  # of the bounds


@dataclass(frozen=True, slots=True)
class RowParams:
    """Sampling parameters of N rows, as columns; None where a parameter cuts no row."""

    temperature: Tensor  # [N] float32, > 0
    min_p: Cut | None  # float32, above 0
    top_k: Cut | None  # int64, above 0
    top_p: Cut | None  # float32, below 1

    @classmethod
    def of(cls, params: Sequence[SamplingParams], device: torch.device) -> "RowParams":
        """One row per entry; all must sample (temperature above 0)."""

        def cut(bound: Callable[[SamplingParams], float], idle: float, dtype: torch.dtype) -> Cut | None:
            bounds = {i: bound(p) for i, p in enumerate(params) if bound(p) != idle}
            if not bounds:
                return None
            return Cut(
                send(list(bounds), device), send(list(bounds.values()), device, dtype), max(bounds.values())
            )

        return cls(
            send([p.temperature for p in params], device, torch.float32),
            cut(lambda p: p.min_p, 0, torch.float32),
            cut(lambda p: min(p.top_k, _ALL), 0, torch.int64),
            cut(lambda p: p.top_p, 1, torch.float32),
        )


def probabilities(logits: Tensor, params: RowParams) -> Tensor:
    """[N, V] logits -> [N, V] float32 probabilities: temperature, min-p, top-k, top-p, each row by its own."""
    wide = logits.float()
    # the maximum first: dividing it by a tiny temperature would overflow
    scaled = (wide - wide.amax(dim=-1, keepdim=True)) / params.temperature[:, None].clamp(min=COLDEST)
    if params.min_p is not None:
        _keep_min_p(scaled, params.min_p)
    if params.top_k is not None:
        _keep_top_k(scaled, params.top_k)
    probs = scaled.softmax(dim=-1)
    if params.top_p is not None:
        _keep_top_p(probs, params.top_p)
    return probs


def _keep_min_p(scaled: Tensor, min_p: Cut) -> None:
    """In place: -inf below this share of the likeliest token's probability. scaled: each row's maximum is 0."""
    selected = scaled[min_p.rows]
    scaled[min_p.rows] = selected.masked_fill(selected < min_p.bounds.log()[:, None], -torch.inf)


def _keep_top_k(scaled: Tensor, top_k: Cut) -> None:
    """In place: -inf below the k-th largest value of each row. Ties with it stay."""
    selected = scaled[top_k.rows]
    most = min(int(top_k.most), scaled.shape[1])
    largest = selected.topk(most, dim=-1).values  # [n, max k], falling
    last_kept = largest.gather(1, top_k.bounds.clamp(max=most)[:, None] - 1)  # [n, 1]
    scaled[top_k.rows] = selected.masked_fill(selected < last_kept, -torch.inf)


def _keep_top_p(probs: Tensor, top_p: Cut) -> None:
    """In place: zero below the smallest set that reaches top_p, then normalised. Ties with its last stay."""
    selected = probs[top_p.rows]
    threshold = _threshold if probs.device.type == "cpu" else _threshold_unseen
    last_kept = threshold(selected, top_p.bounds)
    selected = selected.masked_fill(selected < last_kept[:, None], 0.0)
    probs[top_p.rows] = selected / selected.sum(dim=-1, keepdim=True)


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


def _threshold_unseen(probs: Tensor, top_p: Tensor) -> Tensor:
    """The same without a look at which rows are flat: a GPU sorts them all while the host would wait for the answer."""
    return _cut(probs.sort(dim=-1, descending=True).values, top_p)[0]


def _cut(falling: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """[n, m] falling probabilities -> (the last one needed [n], whether the m of them reach top_p [n])."""
    cumulative = falling.double().cumsum(dim=-1)
    needed = (cumulative < top_p.double()[:, None]).sum(dim=-1)
    settled = needed < falling.shape[1]
    return falling.gather(1, needed.clamp(max=falling.shape[1] - 1)[:, None]).squeeze(1), settled
