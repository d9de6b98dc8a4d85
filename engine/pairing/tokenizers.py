"""Two tokenizers compared: a draft model that numbers its tokens otherwise would guess at random.

Equal means that the same strings have the same ids, the special and the added ones included, and that both cut a text
into the same ones.
"""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

# Digits, case, runs of spaces, contractions, other scripts, an emoji in parts: where tokenizers cut differently.
_PROBE: Final = (
    "It's 12345 o'clock,  don't you think?\n\n\tdef f(x):\n        return x**2 + 0.5\n"
    "ÉCOLE naïve Straße — Ελλάδα привет 你好世界 こんにちは 👩‍🚀 <|im_start|>"
)


class PairingError(Exception):
    """Target and draft do not go together; the message says why."""


def read_tokenizer(directory: Path) -> Tokenizer:
    """A model directory's. Raises PairingError."""
    file = directory / "tokenizer.json"
    if not file.exists():
        raise PairingError(
            f"{file}: missing, so it cannot be told whether target and draft have the same tokens"
        )
    try:
        return Tokenizer.from_file(str(file))
    except Exception as fault:  # noqa: BLE001  tokenizers raises nothing more special
        raise PairingError(f"{file}: cannot be read: {fault}") from None


def difference(target: Tokenizer, draft: Tokenizer) -> str | None:
    """The first thing in which they differ, or None."""
    return next(_differences(target, draft), None)


def _differences(target: Tokenizer, draft: Tokenizer) -> Iterator[str]:
    ours, theirs = _by_id(target), _by_id(draft)
    for token in sorted(ours.keys() | theirs.keys()):
        if ours.get(token) != theirs.get(token):
            yield (
                f"token {token} is {_named(ours.get(token))} in the target's tokenizer and "
                f"{_named(theirs.get(token))} in the draft's"
            )
    kinds, others = _kinds(target), _kinds(draft)
    for token in sorted(kinds.keys() | others.keys()):
        kind, other = kinds.get(token, "an ordinary token"), others.get(token, "an ordinary token")
        if kind != other:
            yield (
                f"token {token}, {ours[token]!r}, is {kind} to the target's tokenizer and {other} to the draft's"
            )
    cut, otherwise = _cut(target), _cut(draft)
    for at, (piece, other) in enumerate(zip_longest(cut, otherwise)):
        if piece != other:
            yield (
                f"they have the same tokens but cut a text differently: token {at + 1} of one that begins with "
                f"{_PROBE[:20]!r} is {_named(piece)} by the target's tokenizer and {_named(other)} by the draft's"
            )


def _by_id(tokenizer: Tokenizer) -> dict[int, str]:
    return {token: string for string, token in tokenizer.get_vocab(with_added_tokens=True).items()}


def _kinds(tokenizer: Tokenizer) -> dict[int, str]:
    """Of the tokens that are looked for in a text before it is cut."""
    added = tokenizer.get_added_tokens_decoder()
    return {token: "a special token" if one.special else "an added token" for token, one in added.items()}


def _cut(tokenizer: Tokenizer) -> list[str]:
    tokens: list[str] = tokenizer.encode(_PROBE, add_special_tokens=False).tokens
    return tokens


def _named(string: str | None) -> str:
    return "none" if string is None else repr(string)
