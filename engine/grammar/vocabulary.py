"""A model's vocabulary as llguidance sees it: the bytes behind every token, and sets of tokens as bit masks."""

from collections.abc import Collection, Iterable
from typing import Final

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engine.grammar.errors import GrammarError

Mask = NDArray[np.int32]  # [ceil(V / 32)], bit t of the whole: token t

_WORD: Final = 32


class GrammarVocabulary:
    """Of one model. To make it takes about a second where the vocabulary is large."""

    def __init__(self, tokenizer: Tokenizer | None, size: int, end_tokens: Collection[int]) -> None:
        """size: of a row of logits. What it has beyond the tokenizer's tokens is never allowed. Raises GrammarError."""
        if tokenizer is None:
            raise GrammarError(
                "the model directory has no tokenizer.json, so its text cannot follow a grammar"
            )
        plain = Tokenizer.from_str(tokenizer.to_str())
        plain.no_padding()
        plain.no_truncation()
        known = max(size, plain.get_vocab_size(with_added_tokens=True))
        try:
            self.tokens = LLTokenizer(plain.to_str(), n_vocab=known, eos_token=sorted(end_tokens) or None)
        except ValueError as fault:
            raise GrammarError(f"this model's tokenizer cannot follow a grammar: {fault}") from None
        self.end_tokens = frozenset(self.tokens.eos_tokens)
        self.ends = _mask(self.end_tokens, size)
        self._drawable = _mask(range(size), size)
        self._known_words = -(-known // _WORD)

    def allowed(self, matcher: LLMatcher) -> Mask:
        """The tokens that may follow where the matcher stands; none when it has failed."""
        found = np.zeros(self._known_words, dtype=np.int32)
        matcher.unsafe_compute_mask_ptr(found.ctypes.data, found.nbytes)
        if matcher.is_error():
            return np.zeros_like(self._drawable)
        return found[: len(self._drawable)] & self._drawable


def members(mask: Mask, limit: int) -> list[int]:
    """The first tokens of a mask, at most `limit`, of which there must be few."""
    found: list[int] = []
    for word in np.flatnonzero(mask)[:limit]:
        bits = int(mask[word]) & 0xFFFFFFFF
        found += [int(word) * _WORD + bit for bit in range(_WORD) if bits >> bit & 1]
    return found[:limit]


def _mask(tokens: Iterable[int], size: int) -> Mask:
    flags = np.zeros(-(-size // _WORD) * _WORD, dtype=np.bool_)
    flags[[token for token in tokens if token < size]] = True
    return np.packbits(flags, bitorder="little").view(np.int32)
