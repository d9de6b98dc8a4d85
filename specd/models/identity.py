"""Which model is this: a fingerprint that changes whenever the text that it writes may change."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specd.config.schema import TargetSection
from specd.models.cache import HashCache
from specd.models.directory import read_config, weight_files

_DEFINING: Final = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
"""Files beside the weights that change what comes out."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What metrics, reports and /v1/models say of the target."""

    name: str
    path: Path
    revision: str
    model_type: str
    quantization: str
    """How the weights are quantised; `none` for plain ones."""


def describe(target: TargetSection, path: Path, hashes: HashCache) -> ModelInfo:
    """`path` is what `resolve_target` made of `target.path`. Slow once per model: it reads all weights."""
    config = read_config(path)
    return ModelInfo(
        name=target.name or Path(target.path).name,
        path=path,
        revision=target.revision or fingerprint(path, hashes),
        model_type=str(config["model_type"]),
        quantization=_quantization(config),
    )


def fingerprint(path: Path, hashes: HashCache) -> str:
    """Twelve hex digits over weights, config, tokenizer and chat template. Copies have the same."""
    files = [*weight_files(path), *(file for name in _DEFINING if (file := path / name).exists())]
    total = hashlib.sha256()
    for file, digest in zip(files, hashes.sha256(files), strict=True):
        total.update(f"{file.name} {digest}\n".encode())
    return total.hexdigest()[:12]


def _quantization(config: dict[str, Any]) -> str:
    quantization = config.get("quantization_config")
    return str(quantization.get("quant_method", "unknown")) if isinstance(quantization, dict) else "none"
