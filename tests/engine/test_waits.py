"""How often a step waits for the device. On a CPU nothing waits, but what would can be counted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from engine.api import SamplingParams
from engine.core import Engine
from engine.model.loader import LoadedModel
from engine.sampling import processors
from engine.sampling.processors import RowParams, probabilities
from engine.verify import best
from tests.engine.conftest import MakeEngine, request
from tests.engine.tile_kernels import TorchTiles

COPY = [5, 9, 31, 7, 12, 80] * 5
READS = {"tolist", "item", "cpu", "numpy", "nonzero", "masked_select", "unique", "equal"}
READS |= {"__bool__", "__int__", "__float__", "__index__", "__array__"}
# Copies from ordinary memory: they wait for what was launched before them. `engine.transfer` has the others.
COPIES = {"tensor", "from_numpy"}


class Waits(TorchFunctionMode):
    """Names of the calls that would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        by_index = name in {"__getitem__", "__setitem__"} and waits_to_look_up(args[1])
        if name in READS | COPIES or by_index:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def waits_to_look_up(index: Any) -> bool:
    """A mask has to be counted, and a list to be copied."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(
        isinstance(part, list) or (isinstance(part, Tensor) and part.dtype == torch.bool) for part in parts
    )


def counted(engine: Engine) -> list[list[str]]:
    """By step."""
    steps = []
    while engine.has_work:
        with Waits() as waits:
            engine.step()
        steps.append(waits.seen)
    return steps


@pytest.fixture
def tiled(tiny: LoadedModel) -> LoadedModel:
    return replace(tiny, kernels=TorchTiles(reach=96))


@pytest.mark.parametrize("kind", ["none", "ngram"])
def test_a_step_waits_for_the_device_once(
    make_engine: MakeEngine, tiled: LoadedModel, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy, sampled and cut rows, edited ones, prompts in chunks: one look at what the device says, per step."""
    monkeypatch.setattr(processors, "_threshold", processors._threshold_unseen)  # these two as on a GPU
    monkeypatch.setattr(best, "_on_host", best._on_device)
    engine = make_engine(kind, model=tiled, max_context=96, max_batch_tokens=32)
    engine.submit(request("greedy", COPY))
    engine.submit(request("sampled", COPY, temperature=0.8, top_k=4, top_p=0.9, min_p=0.01, seed=3))
    engine.submit(
        request("edited", [7], min_tokens=9, frequency_penalty=0.5, banned_tokens=(8,), logit_bias={4: 2.0})
    )
    engine.submit(request("confined", [7], allowed_tokens=(4, 5, 6), temperature=1.0))
    steps = counted(engine)
    assert len(steps) > 10
    assert {tuple(step) for step in steps} == {("tolist",)}


def test_a_layer_skip_draft_waits_once_for_each_pass(
    make_engine: MakeEngine, tiled: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next pass is packed on the host, from the tokens of the last."""
    monkeypatch.setattr(best, "_on_host", best._on_device)
    engine = make_engine("layer-skip", k=3, model=tiled, max_context=96)
    engine.submit(request("greedy", COPY))
    steps = counted(engine)
    assert steps[0] == ["tolist"]
    assert steps[1] == ["tolist"] * 4


def test_the_count_can_fail() -> None:
    with Waits() as waits:
        x = torch.tensor([1.0, 2.0])
        x[x > 1].sum().item()
        x[[0, 1]] = 0
    assert waits.seen == ["tensor", "__getitem__", "item", "__setitem__"]


def test_top_p_sorted_whole_cuts_what_top_p_by_candidates_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU sorts every row; a CPU only those that a short list of candidates does not settle. Flat rows are none."""
    rows = torch.randn(6, 1000, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [[0.1], [8.0]]
    ).repeat(3, 1)
    params = RowParams.of(
        [SamplingParams(max_tokens=1, top_p=p) for p in (0.9, 0.9, 0.5, 0.5, 1.0, 1.0)], rows.device
    )
    by_candidates = probabilities(rows, params)
    monkeypatch.setattr(processors, "_threshold", processors._threshold_unseen)
    assert torch.equal(probabilities(rows, params), by_candidates)
    assert (by_candidates[0] > 0).sum() > 256, "a flat row is among them"
