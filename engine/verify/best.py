"""The likeliest token of each row: with many rows it is felt, so bf16 is looked at as the integers that its bits are.

Positive bf16 numbers are in the order of their bits as int16, above all negative ones. As uint16, a NaN with a sign is
above all else. Vector instructions compare integers of 16 bits; there are none for bf16.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_INFINITY = 0x7F80  # as bits


def best(logits: Tensor) -> tuple[Tensor, Tensor]:
    """[R, V] -> (the likeliest token of each row, the lowest id among equals [R] int64; whether it is finite [R] bool).

    A row with a value that is not a number is not finite.
    """
    return _on_host(logits) if logits.device.type == "cpu" else _on_device(logits)


def _on_device(logits: Tensor) -> tuple[Tensor, Tensor]:
    tokens = logits.argmax(dim=-1)
    return tokens, logits.gather(1, tokens[:, None]).squeeze(1).isfinite()


def _on_host(logits: Tensor) -> tuple[Tensor, Tensor]:
    found, finite = _of_bits(logits) if logits.dtype == torch.bfloat16 else _of_floats(logits)
    return torch.from_numpy(found), torch.from_numpy(finite)


Found = tuple[NDArray[np.int64], NDArray[np.bool_]]


def _of_floats(logits: Tensor) -> Found:
    values: NDArray[Any] = logits.float().numpy()
    tokens = values.argmax(axis=-1)
    return tokens, np.isfinite(values[np.arange(len(values)), tokens])


def _of_bits(logits: Tensor) -> Found:
    bits: NDArray[np.int16] = logits.contiguous().view(torch.int16).numpy()
    tokens = bits.argmax(axis=-1)
    top = bits[np.arange(len(bits)), tokens]
    finite = (top < _INFINITY) & (bits.view(np.uint16).max(axis=-1) <= _INFINITY | 0x8000)
    unordered = np.flatnonzero(top <= 0)  # all negative: their bits fall where they rise
    if len(unordered) > 0:
        tokens[unordered], finite[unordered] = _of_floats(logits[torch.from_numpy(unordered)])
    return tokens, finite
