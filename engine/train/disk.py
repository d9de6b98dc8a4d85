"""What the work of a training takes, compared with what it may take and what is free, before anything is written."""

import shutil
from pathlib import Path

from engine.train import features

_PROMPT_SHARE = 0.8
"""Tokens of prompts for each token of an answer, about."""
_CHECKPOINT_BYTES = 256 << 20


def texts(answer_tokens: int) -> int:
    """Bytes of prompts and answers."""
    return int(answer_tokens * (1 + _PROMPT_SHARE)) * 8


def shards(answer_tokens: int, hidden: int, aux: int) -> int:
    """Bytes of texts, shards and a checkpoint. aux: hidden states of each token."""
    tokens = int(answer_tokens * (1 + _PROMPT_SHARE))
    return texts(answer_tokens) + tokens * features.bytes_per_token(hidden, aux) + _CHECKPOINT_BYTES


def shortage(need: int, allowed: int, folder: Path) -> str | None:
    """Why there is no room, as a sentence. folder: where the work is, or will be; what it holds counts as there."""
    if need > allowed:
        return (
            f"the work needs about {_gb(need)} of disk, and {_gb(allowed)} are allowed: "
            "allow more with --disk, or ask for fewer answers with --tokens"
        )
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if need > held + free:
        return (
            f"the work needs about {_gb(need)} of disk, {_gb(held)} are written and {_gb(free)} are free in {place}: "
            "make room, choose another --out, or ask for fewer answers with --tokens"
        )
    return None


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
