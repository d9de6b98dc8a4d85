"""The self-check at load: a ragged batch against plain forwards, before the first user sees a token."""

from typing import Any, Final

import torch
from torch import Tensor

from engine.attention.paged import ShapeProbe, register
from engine.batch import Span, pack
from engine.kv.memory import KVMemory, LayerShape
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.runner import Runner, call
from engine.model.support import UnsupportedModelError

# Largest difference between two logits of the same row, as a share of the row's spread. Rounding in another order
# stays far below; a wrong mask, position or cache is far above.
_TOLERANCE: Final = {torch.float32: 1e-3, torch.bfloat16: 6e-2, torch.float16: 2e-2}
_BLOCK: Final = 4


def probe_shapes(model: Any) -> dict[int, LayerShape]:
    """What each layer stores per position. Refuses a model whose layers do not each call attention once."""
    probe = ShapeProbe()
    token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    call(model, token, token, probe, token[0])
    layers = model.config.get_text_config().num_hidden_layers
    if probe.calls != dict.fromkeys(range(layers), 1):
        raise UnsupportedModelError(
            f"{model.config.model_type}: {layers} layers should each call attention once, but the calls by layer were "
            f"{probe.calls}; this engine would keep a wrong cache for it"
        )
    return probe.shapes


def plain_logits(model: Any) -> Tensor:
    """What the self-check expects: [5, V] float32, from transformers' own attention and the weights as loaded."""
    first, second = _prompts(model)
    return torch.cat([_plain(model, first)[-4:], _plain(model, second)[-1:]])


def self_check(model: Any, shapes: dict[int, LayerShape], expected: Tensor) -> None:
    """Compare chunked, ragged, rolled-back decoding of two sequences with plain forwards. Raises with the numbers."""
    ragged = _ragged(model, shapes, *_prompts(model))
    spread = (expected.max(dim=-1).values - expected.min(dim=-1).values).clamp(min=1e-6)
    error = float(((ragged.float() - expected).abs().max(dim=-1).values / spread).max())
    if not error <= _TOLERANCE[model.dtype]:
        raise UnsupportedModelError(
            f"{model.config.model_type}: the self-check failed, packed logits differ from plain ones by {error:.2g} "
            f"of their spread (rounding is at most {_TOLERANCE[model.dtype]}); this engine would write wrong text"
        )


def _prompts(model: Any) -> tuple[list[int], list[int]]:
    vocabulary = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randint(vocabulary, (n,), generator=generator).tolist() for n in (11, 7))
    return first, second


def _ragged(model: Any, shapes: dict[int, LayerShape], first: list[int], second: list[int]) -> Tensor:
    """Logits of the last 4 rows of `first` and the last one of `second`, with a wrong draft rolled back before."""
    blocks = 8
    pool = BlockPool(blocks, _BLOCK)
    runner = Runner(model, KVMemory(shapes, blocks, _BLOCK, model.dtype, model.device))
    a, b = BlockTable(pool), BlockTable(pool)
    a.reserve(5)
    runner.forward(pack([Span(a, 0, first[:5], 0)], model.device))
    a.commit(5)
    a.reserve(9)
    b.reserve(6)
    runner.forward(
        pack([Span(a, 5, [*first[5:7], second[0], second[1]], 2), Span(b, 0, second[:6], 1)], model.device)
    )
    a.commit(7)
    b.commit(6)
    a.reserve(11)
    b.reserve(7)
    return runner.forward(pack([Span(b, 6, second[6:], 1), Span(a, 7, first[7:], 4)], model.device)).roll(
        -1, dims=0
    )


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
