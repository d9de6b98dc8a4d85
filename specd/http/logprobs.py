"""Logprobs as OpenAI's two formats and vLLM show them."""

import codecs
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

from engine.api import TokenLogprob
from engine.token_bytes import TokenBytes

Scored = tuple[int, TokenLogprob | None]
"""A token, and how likely it was; None for a prompt's first token, which follows nothing."""

_IMPOSSIBLE: Final = -9999.0
"""JSON has no infinities."""


class Logprobs(Protocol):
    """Formats the tokens of one text, in order and piece by piece."""

    def of(self, scored: Sequence[Scored]) -> dict[str, Any]:
        """The next tokens."""


class ChatLogprobs:
    """`content`, an object for each token."""

    def __init__(self, tokens: TokenBytes, likeliest: int) -> None:
        self._tokens = tokens
        self._likeliest = likeliest

    def of(self, scored: Sequence[Scored]) -> dict[str, Any]:
        """The next tokens."""
        return {"content": [self._token(token, found) for token, found in scored if found], "refusal": None}

    def _token(self, token: int, found: TokenLogprob) -> dict[str, Any]:
        top = [self._named(*one) for one in found.top[: self._likeliest]]
        return {**self._named(token, found.logprob), "top_logprobs": top}

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._tokens.shown(token),
            "logprob": max(logprob, _IMPOSSIBLE),
            "bytes": list(self._tokens.of(token)),
        }


class CompletionLogprobs:
    """Four parallel lists."""

    def __init__(self, tokens: TokenBytes, likeliest: int) -> None:
        self._tokens = tokens
        self._likeliest = likeliest
        self._offset = 0
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, scored: Sequence[Scored]) -> dict[str, Any]:
        """The next tokens."""
        return {
            "tokens": [self._tokens.shown(token) for token, _ in scored],
            "token_logprobs": [
                None if found is None else max(found.logprob, _IMPOSSIBLE) for _, found in scored
            ],
            "top_logprobs": [None if found is None else self._top(found) for _, found in scored],
            "text_offset": list(self._offsets(token for token, _ in scored)),
        }

    def _top(self, found: TokenLogprob) -> dict[str, float]:
        """The likeliest, and the token itself; of two that look alike, the likelier."""
        named: dict[str, float] = {}
        for token, logprob in [*found.top[: self._likeliest], (found.token, found.logprob)]:
            named.setdefault(self._tokens.shown(token), max(logprob, _IMPOSSIBLE))
        return named

    def _offsets(self, tokens: Iterable[int]) -> Iterator[int]:
        """Where each token begins in the text, in characters; special tokens are not in it."""
        for token in tokens:
            own = b"" if self._tokens.special(token) else self._tokens.of(token)
            if own and not _goes_on(own):  # a character that was begun before it ends here, whole or not
                self._offset += len(self._characters.decode(b"", final=True))
            yield self._offset
            self._offset += len(self._characters.decode(own))


def _goes_on(text: bytes) -> bool:
    """Whether it begins within a character of UTF-8."""
    return text[0] & 0b1100_0000 == 0b1000_0000


def prompt_logprobs(tokens: TokenBytes, scored: Sequence[Scored], likeliest: int) -> list[Any]:
    """vLLM's `prompt_logprobs`: for each token null, or an object by token id."""
    return [None if found is None else _by_id(tokens, found, likeliest) for _, found in scored]


def _by_id(tokens: TokenBytes, found: TokenLogprob, likeliest: int) -> dict[str, Any]:
    ranked = [(token, logprob, rank) for rank, (token, logprob) in enumerate(found.top[:likeliest], start=1)]
    return {
        str(token): {
            "logprob": max(logprob, _IMPOSSIBLE),
            "rank": rank,
            "decoded_token": tokens.shown(token),
        }
        for token, logprob, rank in [*ranked, (found.token, found.logprob, found.rank)]
    }
