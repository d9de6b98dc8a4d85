"""Heads on disk: safetensors and config.json, each written beside its place and moved in whole."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from engine.train.record import Record


def write(out: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """The two files that a loader reads."""
    out.mkdir(parents=True, exist_ok=True)
    weights = out / "model.safetensors"
    partial = weights.with_suffix(".partial")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial, {"format": "pt"})
    partial.chmod(0o644)
    partial.rename(weights)
    write_text(out / "config.json", json.dumps(config, indent=2) + "\n")


def write_record(out: Path, record: Record) -> None:
    """What was done, and what came of it."""
    write_text(out / "record.json", record.text())


def write_text(path: Path, text: str) -> None:
    """In one step."""
    partial = path.with_suffix(".partial")
    partial.write_text(text, "utf-8")
    partial.rename(path)
