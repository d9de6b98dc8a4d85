"""Drafts that are rejected across the edge of a sliding window leave no trace: the pool keeps all positions."""

from pathlib import Path

import pytest
import torch

from engine.model.loader import load
from tests.engine.conftest import MakeEngine, generate, request
from tests.engine.test_lossless import PROMPTS, transformers_greedy
from tests.tiny import make_model_dir

MIXED = {"layer_types": ["sliding_attention", "full_attention"] * 2}


@pytest.mark.parametrize(
    ("family", "changes"), [("mistral", {}), ("gemma2", MIXED), ("gemma3_text", MIXED), ("gemma3_text", {})]
)
def test_rejected_drafts_across_a_windows_edge_change_nothing(
    tmp_path: Path, make_engine: MakeEngine, family: str, changes: dict
) -> None:
    """A window of 8, drafts of 7 by a model without layers, and a prompt that begins inside of the first window."""
    path = make_model_dir(tmp_path, family, **changes)
    engine = make_engine(
        "layer-skip",
        k=7,
        skip=(0, 1, 2, 3),
        model=load(path, torch.float32, torch.device("cpu"), lambda _: None),
    )
    outputs = generate(engine, *(request(name, PROMPTS[name]) for name in ("short", "random")))
    for name, output in outputs.items():
        assert output.tokens == transformers_greedy(path, PROMPTS[name]), name
        assert sum(output.report.accepted) < sum(output.report.examined)
