"""Linears in fp8 (e4m3): weights with a scale per output channel, activations with a scale per row, made at each call.

    y[r, o] = sum over i of x8[r, i] w8[o, i]  *  row_scale[r] * scales[o]          sums in float32

A row's scale depends on that row alone, so what a request gets does not depend on who shares its batch.
"""

from collections.abc import Sequence
from typing import Final, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.model.quantised import QuantisedLinear

_E4M3: Final = torch.float8_e4m3fn
_LARGEST: Final = torch.finfo(_E4M3).max
_MULTIPLE: Final = 16  # of both sides of a matrix: what the hardware's tiles ask for


class Fp8Linear(QuantisedLinear):
    """The specification: the products of the rounded values, in float32."""

    values: Tensor  # [out, in] e4m3
    scales: Tensor  # [out] float32

    def __init__(self, values: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = values.shape
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)
        self.register_buffer("bias", bias)

    @classmethod
    def of(cls, linear: nn.Linear) -> Self:
        """Each channel's largest weight becomes the largest that e4m3 has."""
        values, scales = _rounded(linear.weight.detach())
        return cls(values, scales[:, 0], None if linear.bias is None else linear.bias.detach())

    @classmethod
    def suits(cls, linear: nn.Linear) -> bool:
        """See QuantisedLinear."""
        return linear.in_features % _MULTIPLE == 0 and linear.out_features % _MULTIPLE == 0

    @classmethod
    def joined(cls, linears: Sequence[Self]) -> Self:
        """See QuantisedLinear."""
        values = torch.cat([each.values.view(torch.uint8) for each in linears]).view(_E4M3)
        biases = [each.bias for each in linears if each.bias is not None]
        return cls(
            values, torch.cat([each.scales for each in linears]), torch.cat(biases) if biases else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        rows, row_scales = _rounded(x)
        product = F.linear(rows.float(), self.values.float()) * row_scales * self.scales
        return (product if self.bias is None else product + self.bias).to(x.dtype)

    def fast(self) -> "FastFp8Linear":
        """See QuantisedLinear."""
        return FastFp8Linear(self)


class FastFp8Linear(nn.Module):
    """The same by the hardware's fp8 product."""

    def __init__(self, source: Fp8Linear) -> None:
        super().__init__()
        self.out_features, self.in_features = source.out_features, source.in_features
        self._weight = source.values.t()  # [in, out], as the product wants it: column by column
        self._scales = source.scales[None]  # [1, out]
        self._bias = source.bias

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out], in bfloat16."""
        if x.numel() == 0:  # a step may want the logits of no row, and the product refuses that
            return x.new_empty(*x.shape[:-1], self.out_features)
        rows, row_scales = _rounded(x.reshape(-1, self.in_features))
        out = torch._scaled_mm(  # noqa: SLF001
            rows, self._weight, row_scales, self._scales, bias=self._bias, out_dtype=torch.bfloat16
        )
        return out.view(*x.shape[:-1], self.out_features)


def _rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """[..., n] -> e4m3 of the same shape and the scale of each row: [..., 1] float32."""
    wide = x.float()
    scales = wide.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / _LARGEST
    return (wide / scales).clamp(-_LARGEST, _LARGEST).to(_E4M3), scales
