"""The tokens that two vocabularies share, by the bytes that they stand for, and how one reads the other's texts.

Source: Timor et al., "Accelerating LLM inference with lossless speculative decoding algorithms for heterogeneous
vocabularies", ICML 2025, token-level intersection. The draft's law is restricted to the shared tokens, so each token
that it draws is one of the target's. A text of the target's is read token by token: a token that the draft lacks, as
the longest of the draft's that spell it. So what the draft has read stays as it is when the text grows.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engine.token_bytes import TokenBytes

LEAST_SHARE: Final = 0.25
"""Of the smaller vocabulary, that must be in the other one too: with less, common words are missing."""


class SharedTokens:
    """Of a target's vocabulary and a draft's. To make it takes about a second where they are large."""

    def __init__(self, target: Tokenizer, draft: Tokenizer, *, target_size: int, draft_size: int) -> None:
        """Sizes: of the models' rows of logits. Tokens beyond are not shared."""
        self._spelt = _spelling(target, target_size)
        theirs = _spelling(draft, draft_size)
        self._tokens: dict[tuple[bytes, bool], int] = {}
        for token, spelt in theirs.items():
            self._tokens.setdefault(spelt, token)
        self._longest = max((len(spelt) for spelt, _ in self._tokens), default=0)
        self._pieces: dict[int, list[int]] = {}
        self.smaller = min(len(self._spelt), len(theirs))
        pairs = self._pairs()
        self.targets: NDArray[np.int64] = np.array([ours for ours, _ in pairs], dtype=np.int64)
        """[S], each once, rising."""
        self.drafts: NDArray[np.int64] = np.array([theirs for _, theirs in pairs], dtype=np.int64)
        """[S], the draft's names of the same, each once."""
        self._names = dict(pairs)

    @property
    def shortage(self) -> str | None:
        """Why a draft had better not be made of these, if so."""
        shared = len(self.targets)
        if shared >= LEAST_SHARE * self.smaller:
            return None
        return (
            f"the draft shares {shared} tokens with the target, of the {self.smaller} of the smaller vocabulary, and "
            f"at least {LEAST_SHARE:.0%} are wanted: take a draft whose tokenizer is closer to the target's"
        )

    def named(self, token: int, *, otherwise: int) -> int:
        """The draft's token of the same bytes as this one of the target's."""
        return self._names.get(token, otherwise)

    def reading(self, tokens: Sequence[int]) -> list[int]:
        """The draft's tokens of the same bytes. What it cannot spell at all it does not see."""
        return [piece for token in tokens for piece in self._read(token)]

    def _read(self, token: int) -> list[int]:
        named = self._names.get(token)
        if named is not None:
            return [named]
        if token not in self._pieces:
            self._pieces[token] = self._spell(self._spelt.get(token, (b"", False))[0])
        return self._pieces[token]

    def _spell(self, spelt: bytes) -> list[int]:
        """Always the longest ordinary token that goes on."""
        found, at = [], 0
        while at < len(spelt):
            ends = range(min(len(spelt), at + self._longest), at, -1)
            fits = ((end, self._tokens.get((spelt[at:end], False))) for end in ends)
            end, piece = next(((end, piece) for end, piece in fits if piece is not None), (at + 1, None))
            found += [] if piece is None else [piece]
            at = end
        return found

    def _pairs(self) -> list[tuple[int, int]]:
        """(target's token, draft's token); where several stand for the same bytes, the first of each."""
        found: dict[int, int] = {}
        for ours, spelt in self._spelt.items():
            theirs = self._tokens.get(spelt)
            if theirs is not None:
                found.setdefault(theirs, ours)
        return sorted((ours, theirs) for theirs, ours in found.items())


def _spelling(tokenizer: Tokenizer, size: int) -> dict[int, tuple[bytes, bool]]:
    """Each token's bytes, and whether it is special; tokens that stand for nothing are left out. Rising."""
    tokens = TokenBytes(tokenizer)
    known = sorted(token for token in tokenizer.get_vocab(with_added_tokens=True).values() if token < size)
    spelt = {token: (tokens.of(token), tokens.special(token)) for token in known}
    return {token: found for token, found in spelt.items() if found[0]}
