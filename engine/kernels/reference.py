"""The small operations in torch: the specification of the native ones, and what runs where there is no compiler."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class LayerOps(Protocol):
    """What a llama block does between its matrix products. Sums are in float32, results in the input's dtype."""

    def add_rms_norm(self, hidden: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        """hidden += delta, in place; returns hidden / rms(hidden) * weight. hidden, delta: [T, H]; weight: [H] float32.

        Source: Zhang and Sennrich, "Root mean square layer normalization", NeurIPS 2019.
        """

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up. [T, 2 I], gate first -> [T, I]."""

    def rotate(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Rotary embedding, maybe in place. x: [T, heads, dim]; cosine, sine: [T, dim] float32 -> like x.

        Source: Su et al., "RoFormer", 2021, with halves instead of pairs, as the llama family has it.
        """


class TorchOps:
    """See LayerOps."""

    def add_rms_norm(self, hidden: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        """See LayerOps."""
        if delta is not None:
            hidden += delta
        wide = hidden.float()
        squares: Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_()
        scale = squares.div_(hidden.shape[-1]).add_(eps).rsqrt_()
        return (wide * scale).mul_(weight).to(hidden.dtype)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See LayerOps."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def rotate(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """See LayerOps."""
        half = x.shape[-1] // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
        return (x * cosine[:, None] + turned * sine[:, None]).to(x.dtype)
