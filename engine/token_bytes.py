"""The bytes that single tokens stand for: a character may be spread over several."""

import json
import re
from typing import Any, Final

from tokenizers import Tokenizer

_BYTE: Final = re.compile("<0x([0-9A-F]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's way to write any byte as a letter: those that print stand for themselves, others lie above 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTE_LETTERS: Final = _byte_alphabet()
"""The byte of each letter of a byte-level vocabulary."""


class TokenBytes:
    """For one vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        self._letters = "ByteLevel" in _decoders(tokenizer)

    def of(self, token: int) -> bytes:
        """Empty for one that stands for nothing."""
        if token in self._added:
            return self._added[token].content.encode()
        piece = self._tokenizer.id_to_token(token) or ""
        if self._letters:
            return bytes(BYTE_LETTERS[letter] for letter in piece if letter in BYTE_LETTERS)
        if byte := _BYTE.fullmatch(piece):
            return bytes.fromhex(byte[1])
        return piece.replace("▁", " ").encode()

    def special(self, token: int) -> bool:
        """Whether the token is left out of texts."""
        return token in self._added and self._added[token].special

    def shown(self, token: int) -> str:
        """As text, where its bytes are whole characters; else as OpenAI writes bytes."""
        found = self.of(token)
        try:
            return found.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)


def _decoders(tokenizer: Tokenizer) -> set[str]:
    """The types of the decoder's parts."""
    if tokenizer.decoder is None:
        return set()
    decoder: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    return {decoder["type"], *(part["type"] for part in decoder.get("decoders", []))}
