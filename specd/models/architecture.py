"""Whether the engine can run a model, told from its config.json without importing transformers or torch.

The sentences are the engine's own. What it asks of transformers' model class is read from the source text of
transformers, where it is a plain class attribute. The engine has the last word when it loads the model.
"""

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from engine.model.support import ENCODER_DECODERS, modules_reason, quantization_reason, unsupported_reason

__all__ = ["modules_reason", "quantization_reason", "unsupported"]


@dataclass(frozen=True, slots=True)
class ModelClass:
    """The two attributes of a transformers class that decide, under the names that it has there."""

    _supports_attention_backend: bool
    _is_stateful: bool


def unsupported(config: Mapping[str, Any]) -> str | None:
    """Why the engine cannot run a model with this config.json, or None."""
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return "config.json names no model_type: is this a Hugging Face model directory?"
    reason = unsupported_reason(_as_object(config))
    if reason is not None or kind in ENCODER_DECODERS:
        return reason
    model_class = _model_class(kind)
    if model_class is None:
        return f"{kind} is not a causal language model in transformers"
    return unsupported_reason(_as_object(config), model_class)


def _as_object(config: Mapping[str, Any]) -> SimpleNamespace:
    """As transformers would present it: files written before version 5 say rope_scaling."""
    scaling = config.get("rope_scaling") or {}
    old_style = {"rope_type": scaling.get("rope_type", scaling.get("type"))}
    encodes = config.get("model_type") in ENCODER_DECODERS  # which a file need not repeat
    return SimpleNamespace(**{"rope_parameters": old_style, "is_encoder_decoder": encodes, **config})


def _model_class(kind: str) -> ModelClass | None:
    models = _transformers() / "models"
    name = _class_name(models, kind)
    text = None if name is None else _source(models, kind, name)
    if text is None:
        return None
    return ModelClass("_supports_attention_backend = True" in text, "_is_stateful = True" in text)


def _transformers() -> Path:
    found = importlib.util.find_spec("transformers")  # finds without importing
    assert found is not None, "transformers is a dependency"
    assert found.submodule_search_locations, "transformers is a package"
    return Path(found.submodule_search_locations[0])


def _class_name(models: Path, kind: str) -> str | None:
    """The class that AutoModelForCausalLM would take."""
    text = (models / "auto" / "modeling_auto.py").read_text(encoding="utf-8")
    _, _, rest = text.partition("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = ")
    pairs, _, _ = rest.partition("\n)\n")
    found = re.search(rf'\("{re.escape(kind)}",\s*"(\w+)"\)', pairs)
    return None if found is None else found[1]


def _source(models: Path, kind: str, class_name: str) -> str | None:
    """The text of the module that defines the class: mostly in the folder of its own name."""
    likely = sorted(models.glob(f"{kind.replace('-', '_')}/modeling_*.py"))
    for path in (*likely, *sorted(models.glob("*/modeling_*.py"))):
        text = path.read_text(encoding="utf-8")
        if f"class {class_name}(" in text:
            return text
    return None
