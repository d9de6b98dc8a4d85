"""Families of models: what the matrix runs says the same as transformers, and every other one is refused or checked.

A family differs by windows, soft caps, sinks, scales, positions, experts, widths. The matrix runs tiny random models of
each through ragged speculative batches; the reference is transformers' own eager attention, one sequence at a time.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from engine.attention import paged
from engine.batch import Span, pack
from engine.kv.memory import KVMemory
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.check import probe
from engine.model.lean import LeanForward
from engine.model.loader import LoadedModel, load
from engine.model.runner import Runner
from engine.model.support import ENCODER_DECODERS, UnsupportedModelError, unsupported_reason
from specd.models.architecture import unsupported
from tests.engine.conftest import MakeEngine, generate, request
from tests.tiny import _COMMON, FAMILIES, VOCABULARY, make_model_dir
from tests.tiny_t5 import KINDS

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)


def words(count: int) -> list[int]:
    return [int(token) for token in RNG.integers(3, VOCABULARY, size=count)]


PROMPTS = {
    "copy": words(5) * 4,
    "short": words(1),
    "random": words(45),
}  # 45: a chunk that attends alone, 8: a window


@dataclass(frozen=True)
class Family:
    """A tiny model of a family, as transformers and as the engine run it."""

    name: str
    reference: Any
    models: dict[str, LoadedModel]  # by what attends

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> Tensor:
        """[T, V]"""
        return self.reference(torch.tensor([tokens]), use_cache=False).logits[0]


@pytest.fixture(scope="module")
def kernels(kernel_cache: Path) -> Path | None:
    return kernel_cache if shutil.which("g++") else None


@pytest.fixture(scope="module", params=FAMILIES)
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kernels: Path | None
) -> Family:
    path = make_model_dir(tmp_path_factory.mktemp(request.param), request.param)
    reference = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    caches = {"torch": None} | ({} if kernels is None else {"native": kernels})
    models = {
        name: load(path, torch.float32, CPU, lambda _: None, cache=cache) for name, cache in caches.items()
    }
    return Family(request.param, reference, models)


def test_the_families_that_have_a_lean_forward_take_it(family: Family) -> None:
    """Otherwise the matrix would compare transformers with itself where it is meant to test ours."""
    lean = {name for name, model in family.models.items() if isinstance(model.forward, LeanForward)}
    has_one = family.name in {"llama", "mistral", "qwen2", "qwen3"}
    assert lean == (set(family.models) if has_one else set())


@pytest.mark.parametrize("kind", ["ngram", "layer-skip"])
def test_ragged_speculative_batches_say_what_transformers_says(
    family: Family, make_engine: MakeEngine, kind: str
) -> None:
    """Every token is the likeliest one after the text before it, by a plain forward: the greedy text, by induction."""
    for model in family.models.values():
        engine = make_engine(kind, model=model, max_batch_tokens=40)
        asked = [
            request(name, PROMPTS[name], k=k, max_tokens=14)
            for name, k in zip(PROMPTS, (4, 2, 7), strict=True)
        ]
        outputs = generate(engine, *asked)
        for name, prompt in PROMPTS.items():
            said = outputs[name].tokens
            rows = family.logits(prompt + said)[len(prompt) - 1 : -1]
            assert said == rows.argmax(-1).tolist(), name
        drafted = [output.report for output in outputs.values()]
        assert sum(sum(report.examined) for report in drafted) > sum(
            sum(report.accepted) for report in drafted
        )


def test_logits_of_a_ragged_verify_batch_equal_plain_ones(family: Family) -> None:
    """Three sequences, prompts in chunks, a wrong draft rolled back across the window's edge, then mixed k at once."""
    long, middle, short = words(50), words(21), words(4)
    wanted = torch.cat([family.logits(long)[-1:], family.logits(middle)[-5:], family.logits(short)[-2:]])
    for name, model in family.models.items():
        pool = BlockPool(32, 4)
        runner = Runner(KVMemory(model.shapes, pool.total, 4, torch.float32, CPU), model.kernels)
        a, b, c = (BlockTable(pool) for _ in range(3))

        def run(*spans: Span) -> Tensor:
            for span in spans:
                span.table.reserve(span.end)
            return runner.run(model.forward, pack(spans, CPU))  # noqa: B023  called in this round

        run(Span(a, 0, long[:40], 0), Span(b, 0, middle[:6], 0))
        a.commit(40)
        b.commit(6)
        run(Span(b, 6, middle[6:16] + words(5), 6), Span(c, 0, short[:2], 1), Span(a, 40, long[40:49], 1))
        a.commit(49)
        b.commit(16)
        c.commit(2)
        got = run(Span(a, 49, long[49:], 1), Span(b, 16, middle[16:], 5), Span(c, 2, short[2:], 2))
        assert (got - wanted).abs().max() <= 1e-4 * wanted.abs().max().clamp(min=1), name


def config_reason(kind: str) -> str | None:
    """Why a family is refused by its default config, or None: then the self-check decides."""
    try:
        config = AutoConfig.for_model(kind)
    except StrictDataclassError:
        return None  # its defaults contradict each other: there is no model without a config of its own
    return unsupported_reason(config, AutoModelForCausalLM._model_mapping.get(type(config), None))


def documented(heading: str) -> dict[str, set[str]]:
    """A table of docs/models.md: first cell -> families named in the second."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
    _, _, section = page.partition(f"## {heading}\n")
    rows = re.findall(r"^\| ([^|]+?) \| (`.*) \|$", section.partition("\n## ")[0], re.MULTILINE)
    return {why: set(re.findall(r"`([^`]+)`", names)) for why, names in rows}


def test_every_causal_model_of_transformers_is_tested_refused_or_checked_and_documented_as_such() -> None:
    """Nothing falls between: docs/models.md has each family where the code puts it, with the code's own reason."""
    refused: dict[str, set[str]] = {}
    checked = set()
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        reason = config_reason(kind)
        if reason is not None:
            refused.setdefault(reason.removeprefix(f"{kind} "), set()).add(kind)
        elif kind not in FAMILIES:
            checked.add(kind)
    assert set().union(*documented("Tested").values()) == set(FAMILIES)
    assert documented("Refused by the config") == refused
    assert set().union(*documented("Left to the self-check").values()) == checked


def test_every_sequence_to_sequence_model_of_transformers_is_tested_or_refused_and_documented_as_such() -> (
    None
):
    tested, refused = documented("Encoder-decoder models").values()
    assert tested == set(ENCODER_DECODERS) == {values["model_type"] for values in KINDS.values()}
    others = set(MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES) - set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert refused == others - tested
    assert all(unsupported({"model_type": kind}) for kind in refused)
    assert not any(unsupported({"model_type": kind}) for kind in tested)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("diffllama", "should each call attention once"),
        ("doge", "makes an attention mask of its own"),
        ("nemotron", "does not hand keyword arguments on"),
    ],
)
def test_what_only_the_loaded_model_shows_is_refused_when_it_loads(kind: str, sentence: str) -> None:
    paged.register()
    config = AutoConfig.for_model(kind, **{**_COMMON, "num_hidden_layers": 2})
    model = AutoModelForCausalLM.from_config(config, attn_implementation=paged.NAME).eval()
    with pytest.raises(UnsupportedModelError, match=sentence):
        probe(model)


def test_an_argument_that_the_attention_would_ignore_is_refused() -> None:
    """Sparse attention over chosen blocks, for one: with few tokens nothing would show."""
    rows = torch.zeros(1, 1, 1, 4)
    with pytest.raises(UnsupportedModelError, match="gives its attention function block_indices, which"):
        paged.attention_forward(
            torch.nn.Identity(), rows, rows, rows, None, specd=paged.Probe(), block_indices=rows
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss", "deepseek_v3"])
def test_half_precision_stays_within_the_self_checks_tolerance(
    tmp_path: Path, kernels: Path | None, kind: str, dtype: torch.dtype
) -> None:
    """Rounding, and experts that it may choose differently, must not look like a wrong cache: load would refuse."""
    said: list[str] = []
    load(make_model_dir(tmp_path, kind), dtype, CPU, said.append, cache=kernels)
    assert not any(line.startswith("not used") for line in said)
    assert said[-1].startswith("self-check passed")
