"""The forward in one native call is the lean forward, operation by operation, to rounding."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.attention.native import NativePagedAttention
from engine.attention.paged import NAME, PagedAttention, register
from engine.batch import Span, pack
from engine.kernels.native import NativeOps
from engine.kernels.reference import TorchOps
from engine.kv.memory import KVMemory
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.check import probe
from engine.model.fused import FusedForward
from engine.model.lean import LeanForward
from engine.model.loader import load
from engine.model.taps import Taps
from tests.tiny import make_model_dir

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs a C++ compiler: apt-get install g++"
)
CPU = torch.device("cpu")
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 32},
    "one key head": {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1},
    "narrow heads": {"head_dim": 16},  # too narrow for tiles
    "biases": {"family": "qwen2", "head_dim": 32},
    "window": {"family": "mistral", "head_dim": 32, "sliding_window": 21},
}
TAPS = (0, 1, 3, 4, 5)  # the embeddings, some layers, the last one, and that normed
TREES = ([-1, 0, 0, -1], [-1] * 20 + [3, 19, 20], 3, [0 if i else -1 for i in range(40)])


@pytest.fixture(scope="module")
def native(squeezing: NativeOps) -> NativeOps:
    return squeezing


class Both:
    """The same spans through both forwards, each over a KV memory of its own."""

    def __init__(self, path: Path, native: NativeOps, block_size: int) -> None:
        register()
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.bfloat16, attn_implementation=NAME
        ).eval()
        found = probe(model)
        self._native = native
        self._lean = LeanForward(model, found.extras, TorchOps())
        self._fused = FusedForward(model, found.extras, native)
        self.pool = BlockPool(64, block_size)
        self._memories = [
            KVMemory(found.shapes, self.pool.total, block_size, torch.bfloat16, CPU) for _ in range(2)
        ]

    def run(self, *spans: Span) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the lean forward and of the fused one; the spans' rows are committed."""
        for span in spans:
            span.table.reserve(span.end)
        batch = pack(spans, CPU)
        lean, fused = self._memories
        arguments = batch.tokens, batch.positions
        self.taps = [Taps(TAPS), Taps(TAPS)]
        wanted = self._lean(*arguments, PagedAttention(lean, batch), batch.logit_rows, self.taps[0])
        attention = NativePagedAttention(self._native, fused, batch)
        got = self._fused(*arguments, attention, batch.logit_rows, self.taps[1])
        return wanted, got


@pytest.mark.parametrize("block_size", [16, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_ragged_batches_equal_the_lean_forwards(
    tmp_path: Path, native: NativeOps, shape: str, block_size: int
) -> None:
    """Long and short chunks, decodes, verifies and at last trees together, over some steps that read one another."""
    changes = dict(SHAPES[shape])
    both = Both(make_model_dir(tmp_path, changes.pop("family", "llama"), **changes), native, block_size)
    generator = torch.Generator().manual_seed(3)
    tables = [BlockTable(both.pool) for _ in range(4)]
    for lengths in ((70, 3, 18, 1), (1, 1, 1, 1), (5, 1, 9, 2), (1, 33, 2, 4), (2,), TREES):
        spans = []
        for table, rows in zip(tables, lengths, strict=False):
            parents, length = (None, rows) if isinstance(rows, int) else (rows, len(rows) + 1)
            tokens = torch.randint(300, (length,), generator=generator).tolist()
            spans.append(Span(table, table.committed, tokens, min(length, 6), parents))
        wanted, got = both.run(*spans)
        for span in spans:
            span.table.commit(span.end)
        spread = wanted.float().max(-1).values - wanted.float().min(-1).values
        error = (got.float() - wanted.float()).abs().max(-1).values / spread
        assert float(error.max()) < 0.04, lengths
        for tap in TAPS:
            lean, fused = (taps.of([tap]).float() for taps in both.taps)
            assert float((fused - lean).norm() / lean.norm()) < 0.02, f"{lengths}, hidden state {tap}"


@pytest.mark.parametrize("block_size", [16, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_trees_equal_the_lean_forwards(
    tmp_path: Path, native: NativeOps, shape: str, block_size: int
) -> None:
    """Trees of up to 64 rows, whose rows no tile holds together, beside a chain, behind texts of all lengths."""
    changes = dict(SHAPES[shape])
    both = Both(make_model_dir(tmp_path, changes.pop("family", "llama"), **changes), native, block_size)
    rng = np.random.default_rng(5)
    tables = [BlockTable(both.pool) for _ in range(4)]
    prompts = [
        Span(t, 0, rng.integers(300, size=n).tolist(), 1)
        for t, n in zip(tables, (17, 64, 3, 40), strict=True)
    ]
    both.run(*prompts)
    spans = []
    for prompt, nodes in zip(prompts, (9, 63, 24, None), strict=True):
        prompt.table.commit(prompt.end)
        parents = None if nodes is None else [int(rng.integers(max(-1, n - 6), n)) for n in range(nodes)]
        rows = 5 if parents is None else len(parents) + 1
        spans.append(Span(prompt.table, prompt.end, rng.integers(300, size=rows).tolist(), rows, parents))
    wanted, got = both.run(*spans)
    spread = wanted.float().max(-1).values - wanted.float().min(-1).values
    error = (got.float() - wanted.float()).abs().max(-1).values / spread
    assert float(error.max()) < 0.04


@pytest.mark.parametrize("window", [21, 64])
def test_a_query_may_see_nothing_of_a_long_chunks_first_keys(
    tmp_path: Path, native: NativeOps, window: int
) -> None:
    """A window behind which the last of many queries that attend together are, of a head of their own."""
    changes = {"head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    both = Both(make_model_dir(tmp_path, "mistral", sliding_window=window, **changes), native, 16)
    generator = torch.Generator().manual_seed(1)
    table = BlockTable(both.pool)
    for rows in (37, 300):
        tokens = torch.randint(300, (rows,), generator=generator).tolist()
        wanted, got = both.run(Span(table, table.committed, tokens, rows))
        table.commit(table.committed + rows)
        spread = wanted.float().max(-1).values - wanted.float().min(-1).values
        error = (got.float() - wanted.float()).abs().max(-1).values / spread
        assert float(error.max()) < 0.04


def test_the_loader_takes_it_and_says_so(tmp_path: Path, kernel_cache: Path, native: NativeOps) -> None:
    said: list[str] = []
    loaded = load(make_model_dir(tmp_path, head_dim=32), torch.bfloat16, CPU, said.append, cache=kernel_cache)
    assert isinstance(loaded.forward, FusedForward)
    assert "self-check passed: fused forward, squeezed weights" in said
    assert loaded.weight_bytes == loaded.forward.weight_bytes


def test_other_blocks_than_llamas_and_other_types_than_bf16_are_left_to_others(
    tmp_path: Path, kernel_cache: Path
) -> None:
    others = ("gemma2", torch.bfloat16), ("qwen3", torch.bfloat16), ("llama", torch.float32)
    for family, dtype in others:
        path, said = make_model_dir(tmp_path / family, family, head_dim=32), list[str]()
        load(path, dtype, CPU, said.append, cache=kernel_cache)
        assert not [message for message in said if "fused" in message], "it was built and thrown away"
