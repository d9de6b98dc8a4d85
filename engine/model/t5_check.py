"""The self-check of encoder-decoder models at load: ragged rows over the paged KV against transformers' own forward."""

from typing import Any

import torch
from torch import Tensor

from engine.attention.sourced import SourcedKernels
from engine.batch import Span
from engine.kv.memory import KVMemory
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.check import require_equal
from engine.model.runner import Runner
from engine.model.t5 import T5Forward, shapes, start_token

_BLOCK = 16
_LONG, _SHORT = 41, 9  # prompts
_TEXT = 40  # more rows than attend together with others


def plain_t5(model: Any) -> Tensor:
    """What the self-check expects: [6, V] float32, of the weights as they were loaded."""
    long, short, text = _tokens(model)
    return torch.cat([_plain(model, long, text)[-4:], _plain(model, short, text[:3])[[0, 2]]])


def check_t5(model: Any, forward: T5Forward, kernels: SourcedKernels, expected: Tensor) -> None:
    """Two prompts, one of them encoded beside the other's decoding, and a wrong draft that is rolled back.

    Raises UnsupportedModelError with the numbers.
    """
    long, short, text = _tokens(model)
    pool = BlockPool(10, _BLOCK)
    runner = Runner(KVMemory(shapes(model.config), pool.total, _BLOCK, model.dtype, model.device), kernels)
    a, b = BlockTable(pool, source=_LONG), BlockTable(pool, source=_SHORT)

    def run(*spans: Span) -> Tensor:
        for span in spans:
            span.table.reserve(span.end)
        return runner.run(forward, runner.pack(spans)).float()

    run(Span(a, 0, long + text[:-4], 1))
    a.commit(_LONG + len(text) - 4)
    wrong = [short[0], short[1]]
    begun = run(Span(a, a.committed, [text[-4], *wrong], 3), Span(b, 0, [*short, text[0]], 1))
    a.commit(a.committed + 1)
    b.commit(_SHORT + 1)
    three = run(Span(a, a.committed, text[-3:], 3), Span(b, b.committed, text[1:3], 1))
    require_equal(model, torch.cat([begun[:1], three[:3], begun[3:], three[3:]]), expected)


def _tokens(model: Any) -> tuple[list[int], list[int], list[int]]:
    """Two prompts and a text."""
    generator = torch.Generator().manual_seed(0)
    long, short, text = (
        torch.randint(model.config.vocab_size, (n,), generator=generator).tolist()
        for n in (_LONG, _SHORT, _TEXT)
    )
    return long, short, [start_token(model), *text]


@torch.inference_mode()
def _plain(model: Any, prompt: list[int], text: list[int]) -> Tensor:
    """[rows, V]."""
    ids, decoder_ids = (torch.tensor([tokens], device=model.device) for tokens in (prompt, text))
    out = model(input_ids=ids, decoder_input_ids=decoder_ids, use_cache=False)
    return out.logits[0].float()  # type: ignore[no-any-return]
