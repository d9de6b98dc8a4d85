"""The distance of a head's guesses from the target's laws, without keeping a logit longer than a slice of rows."""

from typing import Any

import torch
from torch import Tensor

_SLICE = 512


class LawLoss(torch.autograd.Function):
    """Cross entropy against sparse laws, summed over weighted rows; gradients are found on the way forward.

    Logits of all rows would be the largest tensor of the training by far, and the slowest.
    """

    @staticmethod
    def forward(  # noqa: PLR0917  torch passes them by place
        ctx: Any, hidden: Tensor, head: Tensor, ids: Tensor, probs: Tensor, weights: Tensor
    ) -> Tensor:
        """hidden: [R, H]; head: [Vd, H]; ids, probs: [R, K] in the draft vocabulary; weights: [R] -> a sum."""
        narrow = torch.bfloat16 if hidden.dtype == torch.bfloat16 else torch.float32
        matrix, total = head.to(narrow), hidden.new_zeros((), dtype=torch.float32)
        by_hidden, by_head = torch.empty_like(hidden), torch.zeros_like(head)
        for begin in range(0, len(hidden), _SLICE):
            rows = slice(begin, begin + _SLICE)
            x, law, scale = hidden[rows].to(narrow), probs[rows], weights[rows, None]
            logits = (x @ matrix.T).float()
            mass = law.sum(-1, keepdim=True)
            normaliser = logits.logsumexp(-1, keepdim=True)
            losses = normaliser * mass - (law * logits.gather(1, ids[rows])).sum(-1, keepdim=True)
            total += (losses * scale).sum()
            logits.sub_(normaliser).exp_().mul_(mass * scale)
            slope = logits.scatter_add_(1, ids[rows], -law * scale).to(narrow)
            by_hidden[rows] = slope @ matrix
            if ctx.needs_input_grad[1]:
                by_head += slope.T @ x
        ctx.save_for_backward(by_hidden, by_head)
        return total

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """Scaled by what comes from above."""
        by_hidden, by_head = ctx.saved_tensors
        return by_hidden * slope, by_head * slope, None, None, None
