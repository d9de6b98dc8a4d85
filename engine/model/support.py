"""Which models this engine can run. A refusal is a sentence; silence would be wrong tokens."""

from typing import Any, Final

_LAYER_TYPES: Final = {"full_attention", "sliding_attention"}
_ROPE_COUPLED: Final = {"longrope", "dynamic"}
# They have is_decoder = false in their config and never look at it.
_DECODERS_WHATEVER_IT_SAYS: Final = {"gpt_neox", "gpt_neox_japanese"}
ENCODER_DECODERS: Final = ("mt5", "t5", "umt5")
MODULE_FAMILIES: Final = ("deepseek_v3", "glm4_moe", "mellum", "sarvam_mla", "sarvam_moe")
QUANTIZATIONS: Final = ("none", "int8", "fp8")


class UnsupportedModelError(Exception):
    """The model cannot run on this engine; the message says why."""


def unsupported_reason(config: Any, model_class: Any = None) -> str | None:
    """Why a transformers config cannot run here, or None.

    Necessary, not sufficient: `engine.model.check.self_check` runs the loaded model against itself.
    """
    kind = getattr(config, "model_type", "unknown")
    if getattr(config, "is_encoder_decoder", False):
        return _encoder_decoder_reason(kind)
    if getattr(config, "is_decoder", None) is False and kind not in _DECODERS_WHATEVER_IT_SAYS:
        return f"{kind} is an encoder as configured (is_decoder is false): its rows see what comes after them"
    if model_class is not None and getattr(model_class, "_is_stateful", False):
        return f"{kind} keeps a recurrent state that cannot be rolled back after a rejected draft"
    text = getattr(config, "text_config", None) or config
    return _layer_reason(kind, text) or _backend_reason(kind, model_class) or _rope_reason(kind, text)


def _encoder_decoder_reason(kind: str) -> str | None:
    if kind in ENCODER_DECODERS:
        return None
    return f"{kind} is an encoder-decoder model: of these, this engine runs {', '.join(ENCODER_DECODERS)}"


def _backend_reason(kind: str, model_class: Any) -> str | None:
    if model_class is None or getattr(model_class, "_supports_attention_backend", False):
        return None
    return f"{kind} does not call a pluggable attention function in transformers, so the paged KV cannot reach it"


def _layer_reason(kind: str, config: Any) -> str | None:
    others = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES)
    if others:
        return f"{kind} has layers of type {', '.join(others)}: only full and sliding attention can be rolled back"
    return None


def _rope_reason(kind: str, config: Any) -> str | None:
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    coupled = {str(entry.get("rope_type")) for entry in nested} & _ROPE_COUPLED
    if coupled:
        return (
            f"{kind} uses {coupled.pop()} RoPE, whose angles depend on the longest sequence of the batch: "
            "packed requests would change each other"
        )
    return None


def modules_reason(kind: str) -> str | None:
    """Why targets of this model_type have no multi-token-prediction modules that can draft, or None."""
    if kind in MODULE_FAMILIES:
        return None
    return f"transformers loads no multi-token-prediction modules of {kind}: it does for {', '.join(MODULE_FAMILIES)}"


def quantization_reason(scheme: str, device: str, dtype: str) -> str | None:
    """Why linears cannot be quantised so on this kind of device and in this number format, or None."""
    if scheme not in QUANTIZATIONS:
        return f"quantization {scheme!r} is unknown: there are {', '.join(QUANTIZATIONS)}"
    if scheme == "fp8" and device != "cuda":
        return "fp8 weights need a CUDA device: a CPU multiplies no fp8, take int8 there"
    if scheme == "fp8" and dtype != "bfloat16":
        return f"fp8 products come out in bfloat16, not {dtype}: set the target's dtype to bfloat16"
    return None
