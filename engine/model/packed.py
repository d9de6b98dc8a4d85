"""Linears with weights packed once for oneDNN, and q/k/v and gate/up fused into one product each.

Packing costs a copy at load and saves a reorder at every call: at few rows the plain bf16 linear takes up to twice
as long. One packing serves every row count, and results are equal to rounding.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.kernels.native import NativeOps
from engine.model.quantised import QuantisedLinear

_FUSED: Final = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this machine has the packed kernels for a dtype."""
    return device.type == "cpu" and dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001


class PackedLinear(nn.Module):
    """y = x W^T + b with a packed W.

    With `native`, W is also kept as it was, and a single row goes through the kernel that reads it at memory speed:
    oneDNN takes half as long again. That costs the memory of a second copy.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, native: NativeOps | None = None) -> None:
        super().__init__()
        self._native = native
        self.weight = None  # T5's layers look at the dtype of one of theirs, and at none if there is none
        self._plain = None if native is None else weight.detach().contiguous()
        self.out_features, self.in_features = weight.shape
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), 8)  # noqa: SLF001
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        if self._native is not None and self._plain is not None and x.numel() == self.in_features:
            return self._native.single_row(x.contiguous(), self._plain, self._bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")  # type: ignore[no-any-return]  # noqa: SLF001


class PlainLinear(nn.Module):
    """y = x W^T + b where there is nothing to gain from packing."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._weight = weight.detach()
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return F.linear(x, self._weight, self._bias)


Linear = Callable[[Tensor], Tensor]


def make_linear(linears: Sequence[Any], native: NativeOps | None = None) -> Linear:
    """A module for linears of one input, plain or quantised: one product, their outputs one after another.

    Packed where the machine can.
    native: see PackedLinear; without packing it has no say.
    """
    kind = type(linears[0])
    if any(type(linear) is not kind for linear in linears):
        raise TypeError(f"{kind.__name__} and others of the same input cannot be one product")
    if issubclass(kind, QuantisedLinear):
        return kind.joined(linears).fast()
    weight: Tensor = linears[0].weight
    bias: Tensor | None = linears[0].bias
    if len(linears) > 1:
        weight = torch.cat([linear.weight for linear in linears])
        bias = None if bias is None else torch.cat([linear.bias for linear in linears])
    if not can_pack(weight.dtype, weight.device):
        return PlainLinear(weight, bias)
    return PackedLinear(weight, bias, native)


class _Fused:
    """Several linears of the same input as one product. The first member called computes it for all."""

    def __init__(self, linears: list[Any]) -> None:
        self._linear = make_linear(linears)
        self._sizes = [linear.out_features for linear in linears]
        self._input: Tensor | None = None
        self._parts: dict[int, Tensor] = {}

    def part(self, index: int, x: Tensor) -> Tensor:
        """Member `index`'s product of x. Another tensor, or a second call of a member, computes anew."""
        if x is not self._input or index not in self._parts:
            self._input = x
            self._parts = dict(enumerate(torch.split(self._linear(x), self._sizes, dim=-1)))
        result = self._parts.pop(index)
        if not self._parts:
            self._input = None  # the input lives no longer than its layer
        return result


class FusedMember(nn.Module):
    """Stands where one of the fused linears stood."""

    def __init__(self, fused: _Fused, index: int) -> None:
        super().__init__()
        self._fused = fused
        self._index = index

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return self._fused.part(self._index, x)


def pack_linears(model: nn.Module) -> int:
    """Replace every linear of a model, plain or quantised, by its fast self, in place. Returns how many."""
    packed = 0
    for parent in list(model.modules()):
        for names in _FUSED:
            packed += _fuse(parent, names)
        for name, child in list(parent.named_children()):
            if _is_linear(child):
                setattr(parent, name, make_linear([child]))
                packed += 1
    return packed


def _fuse(parent: nn.Module, names: tuple[str, ...]) -> int:
    linears: list[Any] = [getattr(parent, name, None) for name in names]
    linears = [linear for linear in linears if _is_linear(linear)]
    alike = {(type(linear), linear.in_features, linear.bias is None) for linear in linears}
    if len(linears) < len(names) or len(alike) > 1:
        return 0
    fused = _Fused(linears)
    for index, name in enumerate(names):
        setattr(parent, name, FusedMember(fused, index))
    return len(names)


def _is_linear(module: Any) -> bool:
    return type(module) is nn.Linear or isinstance(
        module, QuantisedLinear
    )  # a subclass may compute something else
