"""A target that says what it said before, and whose draft is worth nothing any more: its hidden units in another order.

Exporters and the quantisers that rotate hidden states leave such models behind: every logit is the old one but for
rounding, and a head that was trained on the old hidden states reads noise.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specd.models import manifest
from specd.models.directory import WEIGHTS, Tensor, read_config, tensor_file

_WORDS: Final[Mapping[str, Any]] = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32}
_WRITES_HIDDEN: Final = ("o_proj.weight", "down_proj.weight")
_SEED: Final = 7


def reordered(target: Path, into: Path) -> Path:
    """Make it of a llama without biases whose weights are in one file. `into` must not exist."""
    shutil.copytree(target, into, ignore=shutil.ignore_patterns(manifest.NAME))
    order = np.random.default_rng(_SEED).permutation(read_config(target)["hidden_size"])
    file = tensor_file(into / WEIGHTS)
    whole = np.memmap(file.path, np.uint8, "r+")
    for name, tensor in file.tensors.items():
        values = _values(whole[file.start :], tensor)
        values[...] = values.take(order, _hidden_axis(name, tensor))
    whole.flush()
    return into


def _values(behind_header: NDArray[np.uint8], tensor: Tensor) -> NDArray[Any]:
    """The tensor's words where they lie; they are moved, never reckoned with, so it does not matter what they mean."""
    begin, end = tensor.data_offsets
    words: NDArray[Any] = behind_header[begin:end].view(_WORDS[tensor.dtype])
    return words.reshape(tensor.shape)


def _hidden_axis(name: str, tensor: Tensor) -> int:
    """The axis along which the hidden units lie: norms and what is added to the hidden state have them first, what
    reads it has them last.
    """
    return 0 if len(tensor.shape) == 1 or name.endswith(_WRITES_HIDDEN) else 1
