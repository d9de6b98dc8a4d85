"""Drawing tokens from laws with given uniforms."""

import torch
from torch import Tensor


def draw(weights: Tensor, coins: Tensor) -> Tensor:
    """Inverse of the cumulative law. weights: [B, V], not normalised; coins: [B] float64 in [0, 1) -> [B] int64."""
    cumulative = weights.double().cumsum(dim=-1)
    total = cumulative[:, -1:]
    # A coin just below 1 must not round up to the whole: no token lies beyond it.
    target = torch.minimum(coins[:, None].to(cumulative) * total, total.nextafter(torch.zeros_like(total)))
    # right=True: a token of weight zero is never drawn, not even by a coin of exactly 0
    found = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    return found.clamp_(
        max=weights.shape[1] - 1
    )  # weights that are not numbers: any token, but one that exists
