"""From a Hugging Face directory to a checked model, ready to run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from engine.attention import paged
from engine.kv.memory import LayerShape
from engine.model.check import plain_logits, probe_shapes, self_check
from engine.model.packed import can_pack, pack_linears
from engine.model.support import UnsupportedModelError, unsupported_reason


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that passed the self-check."""

    model: Any
    shapes: dict[int, LayerShape]
    model_type: str
    max_context: int
    vocabulary: int
    end_tokens: frozenset[int]
    weight_bytes: int

    @property
    def bytes_per_position(self) -> int:
        """KV bytes of one position over all layers."""
        return sum(shape.bytes_per_position(self.model.dtype) for shape in self.shapes.values())


def load(path: Path, dtype: torch.dtype, device: torch.device, say: Callable[[str], None]) -> LoadedModel:
    """Load, check and pack. Raises UnsupportedModelError or OSError with a sentence for the user."""
    config, model_class = _config(path)
    reason = unsupported_reason(config, model_class)
    if reason:
        raise UnsupportedModelError(reason)
    say(f"loading {config.model_type} weights")
    model = _weights(path, dtype).to(device).eval()
    shapes = probe_shapes(model)
    expected = plain_logits(model)
    weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    if can_pack(dtype, device):
        say(f"packed {pack_linears(model)} linears")
    say("self-check: packed rows against plain forwards")
    self_check(model, shapes, expected)
    text = config.get_text_config()
    return LoadedModel(
        model, shapes, config.model_type, int(text.max_position_embeddings), int(text.vocab_size),
        _end_tokens(model), weight_bytes,
    )  # fmt: skip


def _config(path: Path) -> tuple[Any, Any]:
    config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    try:
        model_class = AutoModelForCausalLM._model_mapping[type(config)]  # noqa: SLF001
    except KeyError:
        raise UnsupportedModelError(
            f"{getattr(config, 'model_type', 'this model')} is not a causal language model in transformers"
        ) from None
    return config, model_class


def _weights(path: Path, dtype: torch.dtype) -> Any:
    logging.disable_progress_bar()
    paged.register()
    model, report = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=dtype,
        attn_implementation=paged.NAME,
        trust_remote_code=False,
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
    )
    missing = sorted(report["missing_keys"])
    if missing:
        raise UnsupportedModelError(
            f"{path} lacks {len(missing)} weights, the first is {missing[0]}: it would run on random numbers there"
        )
    return model


def _end_tokens(model: Any) -> frozenset[int]:
    found = model.generation_config.eos_token_id if model.generation_config else None
    if found is None:
        found = model.config.get_text_config().eos_token_id
    if found is None:
        return frozenset()
    return frozenset([found] if isinstance(found, int) else found)
