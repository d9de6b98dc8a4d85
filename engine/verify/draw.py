"""Drawing tokens from laws with given uniforms."""

import torch
from torch import Tensor


def draw(weights: Tensor, coins: Tensor) -> Tensor:
    """Inverse of the cumulative law. weights: [B, V], not normalised; coins: [B] float64 in [0, 1) -> [B] int64."""
    cumulative = weights.double().cumsum(dim=-1)
    target = coins[:, None].to(cumulative) * cumulative[:, -1:]
    # right=True: a token of weight zero is never drawn, not even by a coin of exactly 0
    return torch.searchsorted(cumulative, target, right=True).squeeze(1)
