"""Steps that are filled up to a captured size and replayed over fixed inputs say what plain steps say.

A CUDA graph is played by the function itself, called again: like the graph, it sees nothing of a step but what was
copied into the inputs.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.batch import Span, pack
from engine.core import Engine
from engine.kv.memory import KVMemory
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.graphs import sizes_up_to
from engine.model.loader import LoadedModel, load
from engine.model.runner import Runner
from engine.start import capture as capture_steps
from tests.engine.conftest import MakeEngine, generate, request
from tests.engine.test_trees import REQUESTS, with_trees
from tests.engine.tile_kernels import TorchTiles
from tests.tiny import make_model_dir

CPU = torch.device("cpu")
COPY = [5, 9, 31, 7, 12, 80] * 5


class FakeCapture:
    """Counts what is captured and what is replayed."""

    def __init__(self) -> None:
        self.captured = 0
        self.replayed = 0

    def __call__(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.captured += 1

        def replay() -> Tensor:
            self.replayed += 1
            return run()

        return replay


@pytest.fixture
def tiled(tiny: LoadedModel) -> LoadedModel:
    return replace(tiny, kernels=TorchTiles(reach=96))


def captured(
    make_engine: MakeEngine, tiled: LoadedModel, capture: FakeCapture, kind: str = "ngram", **launch: int
) -> Engine:
    engine = make_engine(kind, model=tiled, max_running=6, max_context=96, max_batch_tokens=32, **launch)
    said: list[str] = []
    capture_steps(engine, capture, said.append)
    assert said == ["captured steps of up to 128 rows in 14 sizes"]
    assert engine.policy.costs.sizes == sizes_up_to(6 * 17), "the policy knows what steps are filled up to"
    return engine


@pytest.mark.parametrize("most", [1, 2, 5, 24, 100, 512, 9999])
def test_sizes_cover_every_step_and_waste_less_than_half_of_it(most: int) -> None:
    sizes = sizes_up_to(most)
    assert list(sizes) == sorted(set(sizes))
    assert min(most, 512) <= sizes[-1] <= 512
    for rows in range(1, min(most, 512) + 1):
        size = next(size for size in sizes if size >= rows)
        assert size < 1.5 * rows or size == rows
    assert all(b <= 2 * a for a, b in pairwise(sizes))


@pytest.mark.parametrize("kind", ["none", "ngram", "layer-skip"])
def test_text_over_captured_steps_equals_text_over_plain_ones(
    make_engine: MakeEngine, tiled: LoadedModel, kind: str
) -> None:
    """Greedy and sampled, prompts in chunks beside decodes, drafts of several lengths, requests that come and go."""
    requests = [
        request("copy", COPY),
        request("short", [7], speculate=False, max_tokens=5),
        request("sampled", COPY, temperature=0.8, seed=3),
        request("long", list(range(3, 60)), k=6),
        request("late", [8, 9, 10] * 4, k=1),
    ]
    capture = FakeCapture()
    replayed = generate(captured(make_engine, tiled, capture, kind), *requests)
    plain = generate(make_engine(kind), *requests)
    assert {n: o.tokens for n, o in replayed.items()} == {n: o.tokens for n, o in plain.items()}
    assert capture.replayed > capture.captured, "nothing was replayed"


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_text_under_trees_over_captured_steps_is_that_of_plain_decoding(
    make_engine: MakeEngine, tmp_path: Path, family: str
) -> None:
    """Whom a row sees is data too: chains, trees and padding in one captured size, with a window and without."""
    model = replace(
        load(make_model_dir(tmp_path, family), torch.float32, CPU, lambda _: None),
        kernels=TorchTiles(reach=96),
    )
    capture = FakeCapture()
    plain = generate(make_engine("none", model=model), *REQUESTS)
    engine = captured(make_engine, model, capture, "none", k=9)
    got, orchard = with_trees(engine, plain, *REQUESTS)
    assert {n: o.tokens for n, o in got.items()} == {n: o.tokens for n, o in plain.items()}
    assert len(orchard.shapes) > 25
    assert capture.replayed > capture.captured


def test_a_step_reports_the_rows_that_filled_it_up(make_engine: MakeEngine, tiled: LoadedModel) -> None:
    """Five decoding rows run as six, and the report has both: cost follows the padded size."""
    engine = captured(make_engine, tiled, FakeCapture(), "none")
    for i in range(5):
        engine.submit(request(str(i), [3 + i], max_tokens=3))
    seen = Counter()
    while engine.has_work:
        report = engine.step()
        seen[report.rows, report.padded_rows] += 1
    assert seen == {(5, 1): 3}


def test_padding_changes_no_key_that_a_sequence_owns(tiny: LoadedModel) -> None:
    """Every block of the pool is the same after a padded step as after a plain one; only the scrap block differs."""
    memories = []
    for capture in (None, FakeCapture()):
        pool = BlockPool(6, 4)
        memory = KVMemory(tiny.shapes, pool.total, 4, tiny.dtype, CPU)
        runner = Runner(memory, TorchTiles(reach=24))
        if capture:
            runner.capture(tiny.forward, capture, sizes=(8,), most_blocks=6)
        table = BlockTable(pool)
        table.reserve(5)
        batch = runner.pack([Span(table, 0, [5, 6, 7, 8, 9], 1)])
        logits = runner.run(tiny.forward, batch)
        assert logits.shape == (1, tiny.vocabulary)
        memories.append(memory)
    plain, padded = memories
    for layer in plain.keys:
        torch.testing.assert_close(plain.keys[layer][:24], padded.keys[layer][:24])
        torch.testing.assert_close(plain.values[layer][:24], padded.values[layer][:24])
        assert padded.keys[layer][24:].any()


def test_a_step_larger_than_the_largest_size_runs_as_it_is(tiny: LoadedModel) -> None:
    pool = BlockPool(6, 4)
    runner = Runner(KVMemory(tiny.shapes, pool.total, 4, tiny.dtype, CPU), TorchTiles(reach=24))
    capture = FakeCapture()
    runner.capture(tiny.forward, capture, sizes=(1, 2, 3), most_blocks=6)
    table = BlockTable(pool)
    table.reserve(5)
    before = capture.replayed
    batch = runner.pack([Span(table, 0, [5, 6, 7, 8, 9], 2)])
    assert (batch.rows, batch.padding) == (5, 0)
    logits = runner.run(tiny.forward, batch)
    assert capture.replayed == before
    small = pack([Span(table, 0, [5, 6, 7], 0)], CPU)
    runner.run(tiny.forward, small)
    assert capture.replayed == before + 1
    torch.testing.assert_close(runner.run(tiny.forward, runner.pack([Span(table, 3, [8, 9], 2)])), logits)


def test_an_engine_whose_steps_cannot_be_captured_says_so_and_works(
    make_engine: MakeEngine, tiny: LoadedModel, tiled: LoadedModel
) -> None:
    def fails(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing")

    for model, sentence in ((tiled, "not permitted"), (tiny, "without Triton kernels")):
        said: list[str] = []
        engine = make_engine(model=model, max_context=96)
        capture_steps(engine, fails, said.append)
        assert "no CUDA graphs" in said[0]
        assert sentence in said[0]
        assert generate(engine, request("a", [5]))["a"].finish == "length"
