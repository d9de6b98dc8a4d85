"""Whether two model directories make a pair of target and draft, told from their files alone."""

from pathlib import Path
from typing import Any

import msgspec

from engine.pairing.shared import SharedTokens
from engine.pairing.tokenizers import PairingError, difference, read_tokenizer


def misfit(target: Path, draft: Path, *, mapped: bool) -> str | None:
    """Why this draft model cannot draft for this target, or None. mapped: another tokenizer will do."""
    try:
        return shared_tokens(target, draft).shortage if mapped else other_tokenizer(target, draft)
    except PairingError as error:
        return str(error)


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


def _rows(directory: Path) -> int:
    """The size of the model's rows of logits, as its config says it. Raises PairingError."""
    file = directory / "config.json"
    try:
        config: dict[str, Any] = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as fault:
        raise PairingError(f"{file}: cannot be read: {fault}") from None
    size = {**config, **(config.get("text_config") or {})}.get("vocab_size")
    if not isinstance(size, int):
        raise PairingError(f"{file}: names no vocab_size")
    return size
