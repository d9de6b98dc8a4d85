"""Directories that look like heads to the daemon, for the model of `write_served_model`."""

import json
import struct
from pathlib import Path

HIDDEN = 8


def fit_for_heads(model: Path, hidden: int = HIDDEN) -> Path:
    """Give a model's config the size that heads are made for, or another."""
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"hidden_size": hidden}))
    return model


def write_head(directory: Path, target: str | None = None, *, hidden: int = HIDDEN) -> Path:
    """An EAGLE-3 head. target: the fingerprint that its record names. hidden: of the target that it was made for."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"architectures": ["Eagle3Speculator"]}))
    shape = [4, 3 * hidden]
    data = directory.name.encode().ljust(2 * shape[0] * shape[1])
    header = json.dumps(
        {"fc.weight": {"dtype": "BF16", "shape": shape, "data_offsets": [0, len(data)]}}
    ).encode()
    weights = struct.pack("<Q", len(header)) + header + data
    (directory / "model.safetensors").write_bytes(weights)
    if target is not None:
        (directory / "record.json").write_text(json.dumps({"target_fingerprint": target}))
    return directory
