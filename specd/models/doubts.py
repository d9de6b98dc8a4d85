"""Why drafts that can be had with a target may not be worth it, told from the files of both."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from specd.models.cache import HashCache
from specd.models.directory import chat_template, read_config
from specd.models.drafts import Drafts, unfit
from specd.models.identity import fingerprint

_SIZES: Final = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)


def alike(one: Path, other: Path) -> bool:
    """Whether a step of the two costs the same: they differ in their weights at most."""
    first, second = read_config(one), read_config(other)
    return all(first.get(size) == second.get(size) for size in _SIZES)


def doubts_about(
    drafts: Drafts, target: Path, hashes: HashCache, *, before: Path | None = None
) -> Iterator[str]:
    """Why drafts that can be had with the model in this directory may not be worth it, a sentence each. before: the
    head that drafted last, if one is to draft wherever there is one.
    """
    if drafts.head is None and before is not None:
        why = unfit(before, target) or "other kinds are configured"
        yield (
            f"the head in {before} drafted before and cannot for this target ({why}), so prompt lookup drafts "
            "alone: train a head with `specd draft train`, or say with model.draft.kind that there is to be none"
        )
    if drafts.head is not None and (reason := _trained_for_another(drafts.head, target, hashes)):
        yield reason
    if drafts.model is not None:
        yield from _reads_otherwise(drafts.model, target)


def _trained_for_another(head: Path, target: Path, hashes: HashCache) -> str | None:
    try:
        record = msgspec.json.decode((head / "record.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return None  # a head of others says nothing of its target
    trained, found = record.get("target_fingerprint"), fingerprint(target, hashes)
    if trained is None or trained == found:
        return None
    return (
        f"the head in {head} was trained for target {trained}, and this one is {found}: look at its acceptance, or "
        "train one with `specd draft train`"
    )


def _reads_otherwise(draft: Path, target: Path) -> Iterator[str]:
    """Draft models read the tokens that the target reads, so what differs is what they were trained to read."""
    if chat_template(draft) != chat_template(target):
        yield (
            f"the draft model in {draft} has another chat template than the target: it was trained on other prompts, "
            "or one of the two files is old"
        )
    ours, theirs = _ends(target), _ends(draft)
    if ours != theirs:
        yield (
            f"the draft model in {draft} ends its texts with {sorted(theirs)} and the target with {sorted(ours)}: at "
            "the end of a text it will draft what is never kept"
        )


def _ends(directory: Path) -> set[int]:
    """Tokens that end a text, as the generation config or the config has them."""
    for name in ("generation_config.json", "config.json"):
        try:
            config = msgspec.json.decode((directory / name).read_bytes(), type=dict[str, Any])
        except (OSError, msgspec.DecodeError):
            continue
        found = config.get("eos_token_id")
        if found is not None:
            return {found} if isinstance(found, int) else set(found)
    return set()
