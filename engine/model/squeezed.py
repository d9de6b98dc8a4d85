"""bf16 weights in twelve bits each, without loss: engine/kernels/squeezed.h says why and how."""

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels.memory import zeros
from engine.kernels.native import NativeOps
from engine.kernels.structures import SqueezedLinear

_STRIP: Final = 32
_BLOCK: Final = 32
_NO_NAME: Final = 15
_LINE: Final = 64
_ROWS: Final = 16  # of a tile: more of them are read in whole tiles


def can_squeeze(weight: Tensor) -> bool:
    """Whether a weight [out, in] has a shape and type that the kernels take."""
    return weight.dtype == torch.bfloat16 and weight.shape[1] % _BLOCK == 0 and weight.shape[0] % 16 == 0


def squeezed_bytes(outputs: int, inputs: int) -> int:
    """Memory of one weight's tiles."""
    return -(-outputs // _STRIP) * _STRIP * inputs * 3 // 2


class Arena:
    """Memory for many weights, one after another in huge pages: reading them in order is then one long stream."""

    def __init__(self, size: int) -> None:
        self._memory = zeros((size + _LINE,), torch.uint8)
        self._used = -self._memory.data_ptr() % _LINE

    def take(self, size: int) -> Tensor:
        """[size] uint8, zero, at the start of a cache line. Sizes must be multiples of one."""
        start, self._used = self._used, self._used + size
        assert self._used <= len(self._memory), f"{self._used=} of {len(self._memory)}"
        return self._memory[start : self._used]


class Squeezed:
    """A linear's weights as the kernels read them. Keeps the memory that `structure` points to."""

    def __init__(self, native: NativeOps, arena: Arena, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight: [out, in] bfloat16; bias: [out]."""
        outputs, inputs = weight.shape
        weight = weight.detach().contiguous()
        counts = native.count_exponents(weight)
        named = counts.topk(_NO_NAME).indices  # the fifteen commonest exponents get names 0 to 14
        code_of = torch.full((256,), _NO_NAME, dtype=torch.uint8)
        code_of[named] = torch.arange(_NO_NAME, dtype=torch.uint8)
        self._exponents = F.pad(named.int() << 7, (0, 1)).repeat(2).to(torch.int16)
        self._data = arena.take(squeezed_bytes(outputs, inputs))
        exceptions = int(counts.sum() - counts[named].sum())
        self._exceptions = native.squeeze(weight, code_of, self._data, exceptions)
        self._bias = None if bias is None else F.pad(bias.detach().float(), (0, -outputs % _STRIP))
        first, place, value = self._exceptions
        self.structure = SqueezedLinear(
            self._data.data_ptr(), self._exponents.data_ptr(), first.data_ptr(), place.data_ptr(), value.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(), inputs, outputs, -(-outputs // _STRIP),
        )  # fmt: skip

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        held = (self._data, self._exponents, *self._exceptions)
        return sum(x.numel() * x.element_size() for x in held)


def squeezed_linear(native: NativeOps, linear: Squeezed, x: Tensor) -> Tensor:
    """[R, in] bf16 -> [R, out]."""
    rows = len(x)
    padded = F.pad(x, (0, 0, 0, -rows % _ROWS)) if rows > _ROWS else x.contiguous()
    return native.squeezed_linear(linear.structure, padded, rows)
