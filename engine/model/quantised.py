"""Linears with quantised weights: what the formats have in common, and the one place that knows them all.

A model is quantised once, right after it was read: each linear is replaced by the specification of its format, a slow
and plain module. That model is the target from then on: what the self-check compares with, what speculation is
lossless to. The fast kernels are made from the specifications and hold the same quantised weights.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Final, Self

import torch
from torch import Tensor, nn

from engine.model.support import UnsupportedModelError, quantization_reason

_FORMATS: Final = {
    "int8": ("engine.model.int8", "Int8Linear"),
    "fp8": ("engine.model.fp8", "Fp8Linear"),
}
_FP8_CAPABILITY: Final = (8, 9)


class QuantisedLinear(nn.Module):
    """The specification of a quantised linear."""

    in_features: int
    out_features: int
    values: Tensor  # [out, in] in the format's own type
    bias: Tensor | None  # [out]

    @classmethod
    def of(cls, linear: nn.Linear) -> Self:
        """Quantise a linear."""
        raise NotImplementedError

    @classmethod
    def suits(cls, linear: nn.Linear) -> bool:
        """Whether the format can hold a linear of this shape; one that it cannot stays as it is."""
        del linear
        return True

    @classmethod
    def joined(cls, linears: Sequence[Self]) -> Self:
        """Linears of one input as one, their outputs one after another. All or none of them have a bias."""
        raise NotImplementedError

    @classmethod
    def tune(cls, linears: Sequence[Self], *, packed: bool, say: Callable[[str], None]) -> int:
        """Choose how the fast ones will compute, by trying. Returns the bytes that they need beyond the weights."""
        del linears, packed, say
        return 0

    def fast(self) -> nn.Module:
        """The same product by the kernels of this machine."""
        raise NotImplementedError


def quantise_linears(model: nn.Module, scheme: str, device: torch.device) -> list[QuantisedLinear]:
    """Replace every nn.Linear by the specification of its quantised self, in place. Raises UnsupportedModelError.

    What is no nn.Linear (embeddings, norms, stacked experts and their routers) stays as it is. A linear that shares its
    weight with the embedding gets a quantised copy.
    """
    reason = quantization_reason(scheme, device.type, str(_dtype(model)).removeprefix("torch."))
    reason = reason or _missing(scheme, device)
    if reason:
        raise UnsupportedModelError(reason)
    module, name = _FORMATS[scheme]
    kind: type[QuantisedLinear] = getattr(import_module(module), name)
    made = []
    for parent, child_name, linear in list(_linears(model)):
        if kind.suits(linear):
            made.append(kind.of(linear))
            setattr(parent, child_name, made[-1])
    if not made:
        raise UnsupportedModelError(
            f"the model has no linear that {scheme} could hold: set quantization to none"
        )
    return made


def _missing(scheme: str, device: torch.device) -> str | None:
    """What this very device lacks for a format, or None."""
    if scheme != "fp8" or (have := torch.cuda.get_device_capability(device)) >= _FP8_CAPABILITY:
        return None
    return (
        f"fp8 products need a GPU of compute capability {_FP8_CAPABILITY[0]}.{_FP8_CAPABILITY[1]}, this one has "
        f"{have[0]}.{have[1]}: take int8 there"
    )


def _linears(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Linear:  # a subclass may compute something else
                yield parent, name, child


def _dtype(model: nn.Module) -> torch.dtype:
    return next(p.dtype for p in model.parameters() if p.is_floating_point())
