"""Huge pages for what is read in every step: with small ones, much of the time goes into finding the pages."""

import ctypes
import sys
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

_HUGE: Final = 2 << 20
_MADV_HUGEPAGE: Final = 14


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """torch.zeros, on CPU in huge pages where the system gives them."""
    memory = torch.empty(tuple(shape), dtype=dtype, device=device)
    if sys.platform == "linux" and memory.device.type == "cpu":
        _ask_for_huge_pages(memory.data_ptr(), memory.numel() * memory.element_size())
    return memory.zero_()


def _ask_for_huge_pages(start: int, size: int) -> None:
    """Before the first touch, which decides. What the system answers does not matter: small pages work too."""
    first, last = -(-start // _HUGE) * _HUGE, (start + size) // _HUGE * _HUGE
    if last > first:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_HUGEPAGE)
