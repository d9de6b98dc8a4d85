"""Which model is this: a fingerprint that changes whenever the text that it writes may change."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specd.config.target import TargetSection
from specd.models import manifest
from specd.models.cache import HashCache
from specd.models.directory import read_config, weight_files

_DEFINING: Final = (
    "adapter_config.json",
    "adapter_model.bin",
    "adapter_model.safetensors",
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
)
"""Files beside the weights that change what comes out. How the weights were quantised by others is in config.json."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What metrics, reports and /v1/models say of the target."""

    name: str
    path: Path
    revision: str
    fingerprint: str
    """What the revision is where the config names none, but for the quantisation."""
    model_type: str
    quantization: str
    """How the weights that are served are quantised, or were before they were dequantised; `none` for plain ones."""
    source: str
    """What the directory was made from, for people; empty where nothing was converted."""


def display_name(target: TargetSection) -> str:
    """The model's name in `/v1/models`, known before the model is read."""
    return target.name or Path(target.path).name.removesuffix(".gguf")


def describe(target: TargetSection, path: Path, hashes: HashCache) -> ModelInfo:
    """`path` is what `resolve_target` made of `target.path`. Slow once per model: it reads all weights."""
    config, found = read_config(path), fingerprint(path, hashes)
    return ModelInfo(
        name=display_name(target),
        path=path,
        revision=target.revision or _revision(target, found),
        fingerprint=found,
        model_type=str(config["model_type"]),
        quantization=_quantization(target, path, config),
        source=f"{origin}, dequantised to bfloat16" if (origin := _gguf(path)) else "",
    )


def _revision(target: TargetSection, found: str) -> str:
    return found if target.quantization == "none" else f"{found}-{target.quantization}"


def fingerprint(path: Path, hashes: HashCache) -> str:
    """Twelve hex digits over weights, config, tokenizer, chat template and adapters. Copies have the same.

    Of a dequantised GGUF that nobody has touched since: the first ones of that file's own SHA-256.
    """
    files = [*weight_files(path), *(file for name in _DEFINING if (file := path / name).exists())]
    digests = {file.name: digest for file, digest in zip(files, hashes.sha256(files), strict=True)}
    made = manifest.read(path)
    if made is not None and made.source_sha256 and _untouched(made, digests):
        return made.source_sha256[:12]
    total = hashlib.sha256()
    for name, digest in digests.items():
        total.update(f"{name} {digest}\n".encode())
    return total.hexdigest()[:12]


def _untouched(made: manifest.Manifest, digests: Mapping[str, str]) -> bool:
    """Whether the files are those that were made, and no other was put beside them."""
    return all(name in made.files and made.files[name].sha256 == digest for name, digest in digests.items())


def _gguf(path: Path) -> str | None:
    """The GGUF file that a directory was made from."""
    made = manifest.read(path)
    return made.source if made is not None and made.source_sha256 else None


def _quantization(target: TargetSection, path: Path, config: dict[str, Any]) -> str:
    if target.quantization != "none":
        return target.quantization
    if _gguf(path):
        return "gguf"
    quantization = config.get("quantization_config")
    return str(quantization.get("quant_method", "unknown")) if isinstance(quantization, dict) else "none"
