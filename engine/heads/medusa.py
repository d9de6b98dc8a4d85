"""Medusa heads: all of them read the target's last hidden state, and head i guesses the token i + 1 behind the next.

A head is some residual blocks, x + silu(linear(x)), and a linear to the vocabulary. Source: Cai et al., "Medusa: simple
LLM inference acceleration framework with multiple decoding heads", 2024. Files of the first version hold the weights of
a list of heads by place, blocks first; where no head has a linear of its own, all use the target's.

    0.0.linear.weight  0.0.linear.bias  0.1.weight      head 0: its block, its linear to the vocabulary
    1.0.linear.weight  1.0.linear.bias  1.1.weight      head 1
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import silu

from engine.heads.tensors import HeadError, Shapes, account, read_config, read_tensors
from engine.model.packed import Linear, PackedLinear, PlainLinear, can_pack

_PICKLES: Final = ("medusa_lm_head.pt",)
_PREFIX: Final = "medusa_heads."


class Fit(NamedTuple):
    """What heads must fit: the target's sizes."""

    hidden: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class MedusaFiles:
    """A directory's content."""

    heads: int
    blocks: int  # of each head
    shared: bool  # the linear to the vocabulary is the target's
    tensors: dict[str, Tensor]


class MedusaHeads:
    """Heads where the target is and in its number format."""

    def __init__(
        self, files: MedusaFiles, dtype: torch.dtype, device: torch.device, head: Callable[[Tensor], Tensor]
    ) -> None:
        """head: the target's linear to the vocabulary, [R, H] -> [R, V]."""
        placed = {key: tensor.to(device, dtype) for key, tensor in files.tensors.items()}
        self.count = files.heads
        self.weight_bytes = sum(tensor.numel() * tensor.element_size() for tensor in placed.values())
        self._blocks = [
            [_linear(placed, f"{i}.{block}.linear") for block in range(files.blocks)]
            for i in range(files.heads)
        ]
        self._heads = [
            head if files.shared else _linear(placed, f"{i}.{files.blocks}") for i in range(files.heads)
        ]

    @torch.inference_mode()
    def __call__(self, hidden: Tensor, heads: int) -> Tensor:
        """What the first so many heads say. hidden: [B, H], behind the target's final norm -> logits [heads, B, V]."""
        return torch.stack([self._say(i, hidden) for i in range(heads)])

    def _say(self, head: int, hidden: Tensor) -> Tensor:
        for block in self._blocks[head]:
            hidden = hidden + silu(block(hidden))
        return self._heads[head](hidden)


def read_medusa(folder: Path, fit: Fit) -> MedusaFiles:
    """Read heads and compare them with the target. Raises HeadError with a sentence."""
    config = read_config(folder)
    tensors = {key.removeprefix(_PREFIX): value for key, value in read_tensors(folder, _PICKLES).items()}
    if "0.0.linear.weight" not in tensors:
        found = ", ".join(sorted(tensors)[:5])
        raise HeadError(f"these are no Medusa heads: there is no 0.0.linear.weight, but {found}")
    heads = _heads(tensors, config.get("medusa_num_heads", 0))
    blocks = int(config.get("medusa_num_layers", 1))
    shared = not any(f"{i}.{blocks}.weight" in tensors for i in range(heads))
    _require_fit(tensors, blocks, fit)
    account(tensors, _wanted(heads, blocks, fit, shared=shared), what=str(folder))
    return MedusaFiles(heads, blocks, shared, tensors)


def _heads(tensors: Mapping[str, Tensor], said: int) -> int:
    """By the weights: the first heads that were published have five, and a config that says two."""
    found = 1 + max(int(key.split(".")[0]) for key in tensors if key.split(".")[0].isdigit())
    if said > found:
        raise HeadError(f"config.json says medusa_num_heads = {said}, but there are weights of {found}")
    return found


def _require_fit(tensors: Mapping[str, Tensor], blocks: int, fit: Fit) -> None:
    hidden = tensors["0.0.linear.weight"].shape[-1]
    if hidden != fit.hidden:
        raise HeadError(
            f"the heads were made for a target of hidden size {hidden}, this one has {fit.hidden}"
        )
    last = tensors.get(f"0.{blocks}.weight")
    if last is not None and last.shape[0] != fit.vocabulary:
        raise HeadError(
            f"the heads were made for a vocabulary of {last.shape[0]} tokens, the target's has {fit.vocabulary}"
        )


def _wanted(heads: int, blocks: int, fit: Fit, *, shared: bool) -> Shapes:
    wanted: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        for block in range(blocks):
            wanted[f"{head}.{block}.linear.weight"] = (fit.hidden, fit.hidden)
            wanted[f"{head}.{block}.linear.bias"] = (fit.hidden,)
        if not shared:
            wanted[f"{head}.{blocks}.weight"] = (fit.vocabulary, fit.hidden)
    return wanted


def _linear(tensors: Mapping[str, Tensor], name: str) -> Linear:
    weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
    kind = PackedLinear if can_pack(weight.dtype, weight.device) else PlainLinear
    return kind(weight, bias)
