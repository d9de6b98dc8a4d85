"""A draft model's rows of logits as the target's: other sizes, other numbers."""

from collections.abc import Sequence as Tokens
from typing import Final, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

# A logit of what the draft cannot say. It is a number, so that a row of nothing else is a law as well: a grammar may
# allow only such tokens.
_NEVER: Final = {torch.float16: -3e4}
_NEVER_OTHERWISE: Final = -1e30


class Vocabulary(Protocol):
    """Between a draft's tokens and the target's."""

    def to_target(self, logits: Tensor) -> Tensor:
        """[B, draft's V] -> [B, target's V], float or as they were; what the draft cannot say has no mass."""

    def to_draft(self, tokens: Tokens[int]) -> list[int]:
        """One for one: what the draft said, by its own numbers again."""


class SameVocabulary:
    """The same tokens. Rows that a model has beyond its tokenizer's are cut, or added without mass."""

    def __init__(self, target_size: int, draft_size: int) -> None:
        self._more = target_size - draft_size
        self._last = draft_size - 1

    def to_target(self, logits: Tensor) -> Tensor:
        """See Vocabulary."""
        return logits if self._more == 0 else pad(logits, (0, self._more), value=never(logits.dtype))

    def to_draft(self, tokens: Tokens[int]) -> list[int]:
        """See Vocabulary. A token without a row, which no text of the tokenizer's has, is read as the last one."""
        return list(tokens) if self._more <= 0 else [min(token, self._last) for token in tokens]


def never(dtype: torch.dtype) -> float:
    """A logit that has no mass beside any other."""
    return _NEVER.get(dtype, _NEVER_OTHERWISE)
