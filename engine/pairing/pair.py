"""Whether two model directories make a pair of target and draft, told from their files alone."""

from pathlib import Path
from typing import Any

import msgspec

from engine.model.support import ENCODER_DECODERS
from engine.pairing.shared import SharedTokens
from engine.pairing.tokenizers import PairingError, difference, read_tokenizer


def misfit(target: Path, draft: Path, *, mapped: bool) -> str | None:
    """Why this draft model cannot draft for this target, or None. mapped: another tokenizer will do."""
    reason = unlike(target, draft, mapped=mapped)
    if reason is not None:
        return reason
    try:
        return shared_tokens(target, draft).shortage if mapped else other_tokenizer(target, draft)
    except PairingError as error:
        return str(error)


def unlike(target: Path, draft: Path, *, mapped: bool) -> str | None:
    """Why the draft cannot read the target's texts, whatever their tokenizers are, or None."""
    if _encodes(target) != _encodes(draft):
        return (
            "of target and draft one has an encoder and the other has not: an encoder-decoder model drafts for one of "
            "its own family, and a decoder-only model for another"
        )
    if mapped and _encodes(target):
        return (
            "the draft of an encoder-decoder model reads the target's own tokens: take one of its family, and set "
            'model.draft.vocabulary = "same"'
        )
    return None


def other_tokenizer(target: Path, draft: Path) -> str | None:
    """In what the draft's tokenizer is not the target's, or None. Raises PairingError."""
    found = difference(read_tokenizer(target), read_tokenizer(draft))
    if found is None:
        return None
    return (
        f"the draft model has another tokenizer: {found}. Take a draft of the target's own family, or set "
        'model.draft.vocabulary = "mapped" to draft with the tokens that both have'
    )


def shared_tokens(target: Path, draft: Path) -> SharedTokens:
    """What both vocabularies have. Raises PairingError."""
    ours, theirs = read_tokenizer(target), read_tokenizer(draft)
    return SharedTokens(ours, theirs, target_size=_rows(target), draft_size=_rows(draft))


def _encodes(directory: Path) -> bool:
    """Whether there is an encoder. Without a config that can be read, which is a fault of its own, there is none."""
    try:
        return _config(directory).get("model_type") in ENCODER_DECODERS
    except PairingError:
        return False


def _config(directory: Path) -> dict[str, Any]:
    """Raises PairingError."""
    file = directory / "config.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as fault:
        raise PairingError(f"{file}: cannot be read: {fault}") from None


def _rows(directory: Path) -> int:
    """The size of the model's rows of logits, as its config says it. Raises PairingError."""
    config = _config(directory)
    size = {**config, **(config.get("text_config") or {})}.get("vocab_size")
    if not isinstance(size, int):
        raise PairingError(f"{directory / 'config.json'}: names no vocab_size")
    return size
