"""What a model has before and behind its decoder layers, for heads that share it."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ends:
    """Of one model; as its forward holds them, so that nothing is held twice."""

    embedding: Tensor  # [V, H]
    head: Callable[[Tensor], Tensor]  # [R, H], behind the final norm -> logits [R, V]
