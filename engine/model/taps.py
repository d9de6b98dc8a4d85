"""Hidden states read off a forward, for drafts that go on from what the target has understood.

Named as transformers numbers `hidden_states`: 0 is the embeddings, i the output of the i-th decoder layer. That of the
last layer is taken before the final norm here; behind the norm it has the next number.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


class Taps:
    """What one forward is asked for, and what it said."""

    def __init__(self, layers: Iterable[int]) -> None:
        self.layers = tuple(sorted(set(layers)))
        self._found: dict[int, Tensor] = {}

    def put(self, layer: int, hidden: Tensor) -> None:
        """To be called by the forward for each of `layers`. hidden: [T, H]; it is not changed afterwards."""
        self._found[layer] = hidden

    def of(self, layers: Sequence[int]) -> Tensor:
        """The hidden states of these layers side by side: [T, len(layers) * H]."""
        return torch.cat([self._found[layer] for layer in layers], dim=-1)
