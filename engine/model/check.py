"""The self-check at load: a ragged batch against plain forwards, before the first user sees a token."""

from typing import Any, Final

import torch
from torch import Tensor

from engine.attention.paged import Probe, register
from engine.batch import Span
from engine.kv.memory import KVMemory, LayerShape
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.forward import Forward, TransformersForward
from engine.model.runner import Kernels, Runner
from engine.model.support import UnsupportedModelError

# Largest difference between two logits of the same row, as a share of the row's spread. Rounding in another order
# stays far below; a wrong mask, position or cache is far above.
_TOLERANCE: Final = {torch.float32: 1e-3, torch.bfloat16: 6e-2, torch.float16: 2e-2}
_BLOCK: Final = 16  # as engines have it: kernels may choose their way by it


def probe(model: Any) -> Probe:
    """What each layer stores and asks for. Refuses a model whose layers do not each call attention once."""
    found = Probe()
    token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    TransformersForward(model)(token, token, found, token[0])
    layers = model.config.get_text_config().num_hidden_layers
    if found.calls != dict.fromkeys(range(layers), 1):
        raise UnsupportedModelError(
            f"{model.config.model_type}: {layers} layers should each call attention once, but the calls by layer were "
            f"{found.calls}; this engine would keep a wrong cache for it"
        )
    _require_windows(model, found)
    return found


def _require_windows(model: Any, found: Probe) -> None:
    """Refuse a model that keeps its window in the mask alone: without a mask it would look beyond it."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        window = (
            getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
        )
        kinds = ["sliding_attention" if window else "full_attention"] * len(found.extras)
    if any(kind == "sliding_attention" and found.extras[i].window is None for i, kind in enumerate(kinds)):
        raise UnsupportedModelError(
            f"{model.config.model_type} has a sliding window but does not tell its attention function of it: "
            "this engine would look beyond the window"
        )


def plain_logits(model: Any) -> Tensor:
    """What the self-check expects: [5, V] float32, from transformers' own attention and the weights as loaded."""
    first, second = _prompts(model)
    return torch.cat([_plain(model, first)[-4:], _plain(model, second)[-1:]])


def self_check(
    model: Any, forward: Forward, kernels: Kernels | None, shapes: dict[int, LayerShape], expected: Tensor
) -> None:
    """Compare chunked, ragged, rolled-back decoding of two sequences with `expected`. Raises with the numbers."""
    require_equal(model, _ragged(model, forward, kernels, shapes).float(), expected)


def require_equal(model: Any, ragged: Tensor, expected: Tensor) -> None:
    """Raises UnsupportedModelError where these logits differ by more than rounding. [R, V] float32 each."""
    spread = (expected.max(dim=-1).values - expected.min(dim=-1).values).clamp(min=1e-6)
    error = float(((ragged - expected).abs().max(dim=-1).values / spread).max())
    if not error <= _TOLERANCE[model.dtype]:
        raise UnsupportedModelError(
            f"{model.config.model_type}: the self-check failed, packed logits differ from plain ones by {error:.2g} "
            f"of their spread (rounding is at most {_TOLERANCE[model.dtype]}); this engine would write wrong text"
        )


def _prompts(model: Any) -> tuple[list[int], list[int]]:
    vocabulary = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    first, second = (
        torch.randint(vocabulary, (n,), generator=generator).tolist() for n in (59, 22)
    )  # prefill of more than 32 rows may take another path
    return first, second


def _ragged(model: Any, forward: Forward, kernels: Kernels | None, shapes: dict[int, LayerShape]) -> Tensor:
    """Logits of the last 4 rows of the first prompt and the last one of the second; a wrong draft was rolled back."""
    first, second = _prompts(model)
    pool = BlockPool(8, _BLOCK)
    runner = Runner(KVMemory(shapes, pool.total, _BLOCK, model.dtype, model.device), kernels)
    a, b = BlockTable(pool), BlockTable(pool)

    def run(*spans: Span) -> Tensor:
        for span in spans:
            span.table.reserve(span.end)
        return runner.run(forward, runner.pack(spans))

    run(Span(a, 0, first[:40], 0))
    a.commit(40)
    run(Span(a, 40, [*first[40:55], second[0], second[1]], 2), Span(b, 0, second[:21], 1))
    a.commit(55)
    b.commit(21)
    four = run(Span(a, 55, first[55:], 4))
    return torch.cat([four, run(Span(b, 21, second[21:], 1))])  # a row alone may take another path


@torch.inference_mode()
def _plain(model: Any, tokens: list[int]) -> Tensor:
    """[T, V] logits of transformers' own eager attention."""
    ours = model.config._attn_implementation  # noqa: SLF001
    model.set_attn_implementation("eager")
    try:
        ids = torch.tensor([tokens], device=model.device)
        return model(input_ids=ids, use_cache=False).logits[0].float()  # type: ignore[no-any-return]
    finally:
        register()
        model.set_attn_implementation(ours)
