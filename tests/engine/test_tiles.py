"""The Triton kernels do what attention over gathered keys does: on a GPU, or by Triton's interpreter without one."""

import numpy as np
import pytest
import torch

from engine.attention.paged import Extras, PagedAttention
from engine.attention.tiles import TiledAttention, TileKernels, lay_out, lay_out_padded
from engine.batch import RaggedBatch, Span, pack
from engine.kv.memory import KVMemory, LayerShape
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable

pytest.importorskip("triton", reason="needs Triton, which comes with torch's CUDA builds: pip install triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16  # the interpreter multiplies no bfloat16
BLOCK = 4
Rows = tuple[int, int] | tuple[int, int, tuple[int, ...]]


@pytest.fixture(scope="module")
def kernels() -> TileKernels:
    from engine.kernels.paged_triton import TritonKernels  # noqa: PLC0415  where there is Triton

    return TritonKernels()


def ragged(lengths: list[Rows], shape: LayerShape, dtype: torch.dtype) -> tuple[KVMemory, RaggedBatch]:
    """Spans of (positions before, rows, a tree's parents) whose blocks lie scattered in a memory of random numbers."""
    generator = torch.Generator(DEVICE).manual_seed(len(lengths))
    pool = BlockPool(sum(-(-(before + rows) // BLOCK) for before, rows, *_ in lengths) + 3, BLOCK)
    np.random.default_rng(0).shuffle(pool._free)
    memory = KVMemory({0: shape}, pool.total, BLOCK, dtype, DEVICE)
    memory.keys[0].normal_(generator=generator)
    memory.values[0].normal_(generator=generator)
    spans = []
    for before, rows, *tree in lengths:
        table = BlockTable(pool)
        table.reserve(before + rows)
        spans.append(Span(table, before, [0] * rows, 1, *tree))
    return memory, pack(spans, DEVICE)


TREE = (-1, 0, 0, -1, 3, 4, 3, 1, 7, 2, -1)
LENGTHS = {
    "one row": [(70, 1)],
    "first token": [(0, 1)],
    "verify": [(3, 1), (66, 5), (127, 9), (0, 3)],
    "prefill beside decodes": [(20, 1), (5, 40), (150, 2)],
    "trees beside a chain": [(6, 12, TREE), (66, 5), (64, 12, TREE)],
}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize(
    ("shape", "share", "window", "softcap", "sinks"),
    [
        (LayerShape(2, 16, 16), 3, None, None, False),
        (LayerShape(1, 16, 16), 1, 5, None, False),
        (LayerShape(2, 12, 20), 2, 70, 3.0, False),
        (LayerShape(2, 16, 16), 4, 8, None, True),
    ],
    ids=["grouped heads", "window", "soft cap, window, odd sizes", "sinks, window"],
)
def test_tiles_equal_gathered_keys(  # noqa: PLR0917
    kernels: TileKernels,
    lengths: list[Rows],
    shape: LayerShape,
    share: int,
    window: int | None,
    softcap: float | None,
    sinks: bool,
) -> None:
    memory, batch = ragged(lengths, shape, torch.float32)
    generator = torch.Generator(DEVICE).manual_seed(1)
    heads = share * shape.kv_heads
    q = torch.randn(heads, batch.rows, shape.key_dim, generator=generator, device=DEVICE).transpose(0, 1)
    k = torch.randn(batch.rows, shape.kv_heads, shape.key_dim, generator=generator, device=DEVICE)
    v = torch.randn(batch.rows, shape.kv_heads, shape.value_dim, generator=generator, device=DEVICE)
    extras = Extras(
        0.3, window, softcap, torch.randn(heads, generator=generator, device=DEVICE) if sinks else None
    )
    mine = TiledAttention(kernels, memory, lay_out(batch, BLOCK)).attend(0, q, k, v, extras)
    written = memory.keys[0].clone(), memory.values[0].clone()
    memory.write(0, batch.slots, torch.zeros_like(k), torch.zeros_like(v))
    theirs = PagedAttention(memory, batch).attend(0, q, k, v, extras)
    torch.testing.assert_close(mine, theirs, atol=2e-6, rtol=1e-5)
    assert torch.equal(written[0], memory.keys[0])
    assert torch.equal(written[1], memory.values[0])


def test_tiles_in_half_precision_equal_gathered_keys_to_rounding(kernels: TileKernels) -> None:
    memory, batch = ragged(LENGTHS["verify"], LayerShape(2, 16, 16), HALF)
    q, k, v = (
        torch.randn(batch.rows, 8, 16, generator=torch.Generator(DEVICE).manual_seed(2), device=DEVICE)
        .to(HALF)
        .split([4, 2, 2], 1)
    )
    mine = TiledAttention(kernels, memory, lay_out(batch, BLOCK)).attend(0, q, k, v, Extras(0.25))
    theirs = PagedAttention(memory, batch).attend(0, q, k, v, Extras(0.25))
    torch.testing.assert_close(mine, theirs, atol=1.6e-2, rtol=1.6e-2)


def test_empty_tiles_change_nothing(kernels: TileKernels) -> None:
    """A layout of as many tiles as rows, most of them empty, attends as the tight one."""
    memory, batch = ragged(LENGTHS["verify"], LayerShape(2, 16, 16), torch.float32)
    q, k, v = torch.randn(
        batch.rows, 8, 16, generator=torch.Generator(DEVICE).manual_seed(2), device=DEVICE
    ).split([4, 2, 2], 1)
    padded = lay_out_padded(batch, BLOCK)
    assert len(padded.columns.rows) == batch.rows
    mine = TiledAttention(kernels, memory, padded).attend(0, q, k, v, Extras(0.25))
    theirs = TiledAttention(kernels, memory, lay_out(batch, BLOCK)).attend(0, q, k, v, Extras(0.25))
    assert torch.equal(mine, theirs)
