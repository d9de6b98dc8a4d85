"""How long a prompt may be, and how long a text is at least: what is far too long is refused before it is tokenized."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Self

from tokenizers import Tokenizer
from tokenizers.models import BPE

from engine.token_bytes import BYTE_LETTERS
from specd.http.errors import ApiError

_NFC_SHRINKS: Final = 4
"""Times at most: in the worst case, a Greek letter with two marks, it makes two bytes of seven."""
_IN_TEXTS: Final = frozenset(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}
"""The bytes that there are in UTF-8."""
_KEEPING: Final = frozenset({"ByteLevel", "Digits", "Sequence", "Split"})
"""Pre-tokenizers that drop nothing of a text; of Split there is a behavior that does."""


@dataclass(frozen=True, slots=True)
class Room:
    """For a prompt."""

    context: int
    """Tokens of prompt and answer together."""
    most: int | None = None
    """What this server takes, whatever the context would hold."""

    def check(self, tokens: int, *, counted: bool = True) -> None:
        """Raises `ApiError` for a prompt of so many tokens; not `counted`: of so many at least."""
        has = f"the prompt has {'' if counted else 'at least '}{tokens} tokens"
        if self.most is not None and tokens > self.most:
            message = f"{has}, and this server takes {self.most} (server.max_prompt_tokens): shorten it"
            raise ApiError(400, message, param="prompt", code="prompt_too_long")
        if tokens >= self.context:
            message = f"{has} and the context holds {self.context}, the answer included: shorten the prompt"
            raise ApiError(400, message, param="prompt", code="context_length_exceeded")


@dataclass(frozen=True, slots=True)
class Shortest:
    """A bound from below on the tokens of a text, by its bytes alone."""

    bytes_a_token: float
    """That one can stand for; infinite where nothing is known."""
    dropped: bytes = b""
    """Bytes that no token stands for: the tokenizer passes over them."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Known of byte-level BPE, which most models have, as long as nothing else takes parts of a text away."""
        pieces = tokenizer.get_vocab(with_added_tokens=False)
        added = tokenizer.get_added_tokens_decoder().values()
        dropped = bytes(byte for letter, byte in BYTE_LETTERS.items() if letter not in pieces)
        normalizer = _state(tokenizer.normalizer).get("type")
        reckoned = normalizer is None or (normalizer == "NFC" and not _IN_TEXTS & set(dropped))
        if not reckoned or not _is_of_bytes(tokenizer) or any(one.lstrip or one.rstrip for one in added):
            return cls(inf)
        sizes = (*map(len, pieces), *(len(one.content.encode()) for one in added))  # a letter is a byte
        return cls(max(sizes) * (1 if normalizer is None else _NFC_SHRINKS), dropped)

    def tokens(self, text: str) -> int:
        """It is not fewer than so many."""
        return int(len(text.encode().translate(None, self.dropped)) / self.bytes_a_token)


def _is_of_bytes(tokenizer: Tokenizer) -> bool:
    """Whether each byte is a letter of a piece, and comes there."""
    parts = list(_parts(_state(tokenizer.pre_tokenizer)))
    keeps = all(part["type"] in _KEEPING and part.get("behavior") != "Removed" for part in parts)
    return keeps and any(part["type"] == "ByteLevel" for part in parts) and isinstance(tokenizer.model, BPE)


def _state(part: Any) -> dict[str, Any]:
    """How a part of a tokenizer is written down; empty where it has none."""
    if part is None:
        return {}
    state: dict[str, Any] = json.loads(part.__getstate__())
    return state


def _parts(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if state:
        yield state
    for part in state.get("pretokenizers", ()):
        yield from _parts(part)
