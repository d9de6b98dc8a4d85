"""Names for prefixes: a block is found by the digest of its own tokens and of all that come before it.

    digest_0 = H(root, tokens of block 0)      digest_i = H(digest_{i-1}, tokens of block i)

The root is made of whatever else the keys and values depend on, so texts of different models or adapters never share a
block. H is BLAKE2b with 256 bits: a collision that someone could look for does not exist, so the tokens themselves
are not kept beside it.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

_BYTES = 32


def root(model: str, adapter: str = "") -> bytes:
    """Where the chains of one model with one adapter begin. `model` names weights and number format."""
    return _digest(b"", f"{model}\0{adapter}".encode())


def extended(before: bytes, tokens: Sequence[int]) -> bytes:
    """The digest of a prefix that goes on with a block of these tokens."""
    return _digest(before, array("q", tokens).tobytes())


class Chain:
    """The digests of one text's leading blocks, each made once, when its block is full."""

    def __init__(self, start: bytes, block_size: int) -> None:
        """start: the root."""
        self.start = start
        self._size = block_size
        self._digests: list[bytes] = []

    def leading(self, tokens: Sequence[int], blocks: int) -> list[bytes]:
        """Digests of the first `blocks` blocks of the text. Only its end may have grown since the last call."""
        while len(self._digests) < blocks:
            at = len(self._digests) * self._size
            before = self._digests[-1] if self._digests else self.start
            self._digests.append(extended(before, tokens[at : at + self._size]))
        return self._digests[:blocks]


def _digest(before: bytes, content: bytes) -> bytes:
    return blake2b(before + content, digest_size=_BYTES).digest()
