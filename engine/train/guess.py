"""What a head says, and what training asks of a head."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from torch import Tensor


class Guess(NamedTuple):
    """One step of a head, for all rows; a row's logits are rows @ matrix.T, which nobody needs for all of them."""

    rows: Tensor  # [B, L, H]
    matrix: Tensor  # [Vd, H]


class Steps(Protocol):
    """A head as it is trained and evaluated; a torch module."""

    def __call__(self, aux: Tensor, embedded: Tensor, steps: int) -> Iterator[Guess]:
        """What each step says, in rows that go with the same laws.

        aux: [B, L, A * H], the target's states at each row's token; embedded: [B, L, H], of the token after it. Step s
        of row i is what a round that began at row i - s says s tokens later; rows i < s have no meaning.
        """
