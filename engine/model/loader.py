"""From a Hugging Face directory to a checked model, ready to run."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.utils import logging

from engine.attention import paged
from engine.attention.paged import Probe
from engine.attention.sourced import SourcedKernels
from engine.available import available_bytes, mib
from engine.kernels.native import NativeError, NativeOps, build
from engine.kernels.reference import TorchOps
from engine.kv.memory import LayerShape
from engine.model.check import plain_logits, probe, self_check
from engine.model.forward import Forward, TransformersForward
from engine.model.fused import FusedForward
from engine.model.lean import LeanForward
from engine.model.packed import can_pack, pack_linears
from engine.model.quantised import QuantisedLinear, quantise_linears
from engine.model.runner import Kernels
from engine.model.support import ENCODER_DECODERS, UnsupportedModelError, unsupported_reason
from engine.model.t5 import T5Forward, row_width, shapes, start_token, usual_context
from engine.model.t5_check import check_t5, plain_t5

# Weights up to this size are kept twice on CPU, packed and plain: a single row is read half as fast again from the
# plain ones. Larger models have better uses for the memory.
_HELD_TWICE: Final = 1 << 30


class _Candidate(NamedTuple):
    """A way to run a model."""

    name: str
    make: Callable[[], Forward]
    kernels: Kernels | None
    copied: int  # bytes of weights beside the model's own, which stay until the self-check has passed


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that passed the self-check."""

    forward: Forward
    kernels: Kernels | None
    shapes: dict[int, LayerShape]
    dtype: torch.dtype
    device: torch.device
    model_type: str
    max_context: int
    vocabulary: int
    end_tokens: frozenset[int]
    weight_bytes: int
    row_width: int
    """Activations that one row has in flight at a time, at most: numbers, not bytes."""
    path: Path
    cache: Path | None
    """See `load`."""
    start: tuple[int, ...] = ()
    """What a text begins with whose prompt is read by an encoder; empty for decoder-only models."""
    encoder_heads: int = 0
    """Each looks from every token of a prompt at every other at once."""

    @property
    def bytes_per_position(self) -> int:
        """KV bytes of one position over all layers."""
        return sum(shape.bytes_per_position(self.dtype) for shape in self.shapes.values())

    @property
    def reach(self) -> int:
        """Tokens that it can read at most."""
        return sys.maxsize if self.encoder_heads else self.max_context

    def context(self, asked: int) -> int:
        """Tokens of prompt and text together; asked: what the operator wants, 0 for whatever suits the model.

        An encoder-decoder model has positions without end, and `max_context` is what it was trained for.
        """
        return min(asked or self.max_context, self.reach)


def load(
    path: Path,
    dtype: torch.dtype,
    device: torch.device,
    say: Callable[[str], None],
    *,
    cache: Path | None = None,
    quantization: str = "none",
    squeeze: bool = True,
) -> LoadedModel:
    """Load, quantise, check and pack. On a CPU, native kernels are built into `cache`; None does without them.

    squeeze: hold weights so that they are quick to read, for steps of few rows; who reads long texts does better
    without. Raises UnsupportedModelError or OSError with a sentence for the user.
    """
    config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    if config.model_type in ENCODER_DECODERS:
        return _load_encoder_decoder(path, config, dtype, device, say, quantization)
    model_class = _model_class(config)
    reason = unsupported_reason(config, model_class)
    if reason:
        raise UnsupportedModelError(reason)
    say(f"loading {config.model_type} weights")
    model = _weights(path, dtype).to(device).eval()
    quantised = [] if quantization == "none" else quantise_linears(model, quantization, device)
    found = probe(model)
    expected = plain_logits(model)
    weight_bytes = _weight_bytes(model)  # before packing takes them out of the model
    if quantised:
        say(_quantised(quantization, quantised, weight_bytes))
        packed = can_pack(dtype, device) and weight_bytes <= _HELD_TWICE
        weight_bytes += type(quantised[0]).tune(quantised, packed=packed, say=say)
    kernels = _triton(say) if device.type == "cuda" else _native(cache, dtype, say)
    forward, kernels = _forward(model, found, expected, kernels, say, squeeze=squeeze)
    text = config.get_text_config()
    return LoadedModel(
        forward=forward,
        kernels=kernels,
        shapes=found.shapes,
        dtype=dtype,
        device=device,
        model_type=config.model_type,
        max_context=int(text.max_position_embeddings),
        vocabulary=int(text.vocab_size),
        end_tokens=_end_tokens(model),
        weight_bytes=_held(forward, weight_bytes),
        row_width=_row_width(text),
        path=path,
        cache=cache,
    )


def _held(forward: Forward, weight_bytes: int) -> int:
    """Memory of the weights as the forward holds them; weight_bytes: as they were loaded."""
    if isinstance(forward, FusedForward):
        return forward.weight_bytes
    return weight_bytes * (2 if isinstance(forward, LeanForward) and forward.held_twice else 1)


def _row_width(text: Any) -> int:
    """Residual, input, queries with keys and values, output; gate, up and their product."""
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    widest = inner if isinstance(inner, int) else max(inner)  # some have one for each layer
    return int(4 * text.hidden_size + 3 * widest)


def _triton(say: Callable[[str], None]) -> Kernels | None:
    try:
        from engine.kernels.paged_triton import TritonKernels  # noqa: PLC0415  torch's CPU builds come without Triton
    except ImportError as fault:
        say(f"no Triton kernels: {fault}")
        return None
    return TritonKernels()


def _native(cache: Path | None, dtype: torch.dtype, say: Callable[[str], None]) -> NativeOps | None:
    if cache is None:
        return None
    try:
        return NativeOps(build(cache), dtype)
    except NativeError as fault:
        say(f"no native kernels: {fault}")
        return None


def _forward(
    model: Any,
    found: Probe,
    expected: Tensor,
    kernels: Kernels | None,
    say: Callable[[str], None],
    *,
    squeeze: bool,
) -> tuple[Forward, Kernels | None]:
    """The fastest combination that passes the self-check, the plain one last. Raises UnsupportedModelError."""
    for name, make, used, copied in _candidates(model, found, kernels, squeeze=squeeze):
        missing = copied - available_bytes(model.device)
        if missing > 0:
            say(f"not used: {name}: it copies the weights, for which {mib(missing)} of memory are missing")
            continue
        try:
            forward = make()
            self_check(model, forward, used, found.shapes, expected)
        except Exception as fault:  # noqa: BLE001  a fast path that fails in any way is one not to take
            say(f"not used: {name}: {fault}")
        else:
            say(f"self-check passed: {name}")
            return forward, used
    forward = _transformers(model)
    self_check(model, forward, None, found.shapes, expected)
    say("self-check passed: transformers' forward")
    return forward, None


def _candidates(model: Any, found: Probe, kernels: Kernels | None, *, squeeze: bool) -> Iterator[_Candidate]:
    """The fast paths that may suit, fastest first."""
    native = kernels if isinstance(kernels, NativeOps) else None
    kind = "Triton" if native is None else "native"
    copy = _weight_bytes(model) if model.device.type == "cpu" else 0  # a GPU says itself when it is full
    if squeeze and native is not None and FusedForward.suits(model, native):
        fused = partial(FusedForward, model, found.extras, native)
        yield _Candidate("fused forward, squeezed weights", fused, native, copy * 3 // 4)
    if LeanForward.suits(model):
        if kernels is not None:
            twice = _twice(model, native)
            lean = partial(LeanForward, model, found.extras, native or TorchOps(), twice)
            yield _Candidate(
                f"lean forward, {kind} kernels", lean, kernels, copy * (1 if twice is None else 2)
            )
        lean = partial(LeanForward, model, found.extras, TorchOps())
        yield _Candidate("lean forward", lean, None, copy)
    if kernels is not None:
        plain = partial(_transformers, model)
        yield _Candidate(f"transformers' forward, {kind} attention", plain, kernels, 0)


def _quantised(scheme: str, linears: Sequence[QuantisedLinear], weight_bytes: int) -> str:
    held = sum(linear.values.numel() * linear.values.element_size() for linear in linears)
    rest = (weight_bytes - held) >> 20
    return (
        f"{scheme}: {len(linears)} linears in {held >> 20} MiB; embeddings and the rest stay as they are, {rest} MiB; "
        "the quantised model is the target"
    )


def _twice(model: Any, native: NativeOps | None) -> NativeOps | None:
    """The kernel for single rows, if the model is small enough to be held twice for it."""
    if _is_quantised(model) or not can_pack(model.dtype, model.device):
        return None
    return native if _weight_bytes(model) <= _HELD_TWICE else None


def _is_quantised(model: Any) -> bool:
    return any(isinstance(module, QuantisedLinear) for module in model.modules())


def _weight_bytes(model: Any) -> int:
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))


def _transformers(model: Any) -> Forward:
    """transformers' forward; its linears are made fast in place where the machine can."""
    if can_pack(model.dtype, model.device) or _is_quantised(model):
        pack_linears(model)
    return TransformersForward(model)


def _load_encoder_decoder(  # noqa: PLR0917
    path: Path,
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    say: Callable[[str], None],
    quantization: str,
) -> LoadedModel:
    """One of T5's kind. Its weights stay as they are, and one forward runs them."""
    if quantization != "none":
        raise UnsupportedModelError(
            f"{config.model_type} runs with plain weights only: set model.target.quantization to none"
        )
    if dtype == torch.float16:
        raise UnsupportedModelError(f"{config.model_type} overflows float16: take bfloat16 or float32")
    say(f"loading {config.model_type} weights")
    model = _weights(path, dtype, AutoModelForSeq2SeqLM, "sdpa").to(device).eval()
    expected, weight_bytes = plain_t5(model), _weight_bytes(model)
    if can_pack(dtype, device):
        weight_bytes += _tied_head_bytes(model)
        pack_linears(model)
    forward, kernels = T5Forward(model), SourcedKernels()
    check_t5(model, forward, kernels, expected)
    say("self-check passed: encoder-decoder forward")
    return LoadedModel(
        forward=forward,
        kernels=kernels,
        shapes=shapes(config),
        dtype=dtype,
        device=device,
        model_type=config.model_type,
        max_context=usual_context(config),
        vocabulary=model.lm_head.out_features,
        end_tokens=_end_tokens(model),
        weight_bytes=weight_bytes,
        row_width=row_width(config),
        path=path,
        cache=None,
        start=(start_token(model),),
        encoder_heads=config.num_heads,
    )


def _tied_head_bytes(model: Any) -> int:
    """What packing adds: the head gets a copy of weights that are the embedding's too."""
    head = model.lm_head.weight
    return head.nbytes if head is model.get_input_embeddings().weight else 0


def _model_class(config: Any) -> Any:
    try:
        return AutoModelForCausalLM._model_mapping[type(config)]  # noqa: SLF001
    except KeyError:
        raise UnsupportedModelError(
            f"{getattr(config, 'model_type', 'this model')} is not a causal language model in transformers"
        ) from None


def _weights(
    path: Path, dtype: torch.dtype, family: Any = AutoModelForCausalLM, attention: str = paged.NAME
) -> Any:
    logging.disable_progress_bar()
    paged.register()
    model, report = family.from_pretrained(
        path,
        dtype=dtype,
        attn_implementation=attention,
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
    listed = [found] if isinstance(found, int) else found
    # some configs name ends that the vocabulary lacks: they are never drawn, and must not be looked up
    return frozenset(token for token in listed if 0 <= token < model.config.get_text_config().vocab_size)
