"""What training writes is what drafts: on a tiny target by value, and the head in the package by its files."""

import json
from importlib import resources
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.batch import Span
from engine.heads.eagle import EagleHead
from engine.heads.formats import Fit, read_eagle
from engine.kv.memory import KVMemory
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.ends import Ends
from engine.model.runner import Runner
from engine.train import eagle3
from engine.train.corpus import Vocabulary
from engine.train.errors import TrainError
from engine.train.job import Job
from tests.tiny import VOCABULARY, make_model_dir

CPU = torch.device("cpu")
DEMO = Path(str(resources.files("engine"))) / "heads" / "demo"
MOST_BYTES = 24_000_000


def test_what_is_written_drafts_as_what_was_trained(tiny_dir: Path, tmp_path: Path) -> None:
    """The dense head of the training against the loaded one over paged keys, for every row of a text."""
    target = AutoModelForCausalLM.from_pretrained(tiny_dir, dtype=torch.float32)
    kept = torch.arange(0, VOCABULARY, 3)
    places = torch.full((VOCABULARY,), -1).index_copy_(0, kept, torch.arange(len(kept)))
    trained = eagle3.make(target, Vocabulary(kept, places))
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter)).copy_(parameter.bfloat16())
    out = tmp_path / "head"
    job = Job(kind="eagle3", target=str(tiny_dir), name="org/tiny", prompts="builtin", out=str(out))
    eagle3.write(trained, Vocabulary(kept, places), target, job)
    files = read_eagle(out, Fit(64, VOCABULARY, 4))
    embedding = target.get_input_embeddings().weight.detach()
    loaded = EagleHead.of(files, Ends(embedding, target.lm_head), torch.float32)
    tokens, aux = torch.randint(VOCABULARY, (12,)), torch.randn(12, 192)
    memory = KVMemory({0: loaded.kv_shape}, 1, 16, torch.float32, CPU)
    table = BlockTable(BlockPool(1, 16))
    table.reserve(12)
    runner = Runner(memory)
    batch = runner.pack([Span(table, 0, tokens.tolist(), 12)])
    said = loaded(
        batch.tokens, loaded.features(aux), batch.positions, runner.attention(batch), batch.logit_rows
    )
    with torch.no_grad():
        guess = next(trained(aux[None], embedding[tokens][None], 1))
        torch.testing.assert_close(said.logits, (guess.rows @ guess.matrix.T)[0], atol=1e-4, rtol=1e-4)
    assert files.targets is not None
    assert torch.equal(files.targets, kept)


def test_the_head_in_the_package_fits_the_demo_model_and_says_how_it_was_made() -> None:
    """By its files alone; what it earns is measured by `make bench`."""
    files = read_eagle(DEMO, Fit(576, 49152, 30))
    assert files.shape.taps == (2, 15, 27)
    assert (DEMO / "model.safetensors").stat().st_size <= MOST_BYTES
    record = json.loads((DEMO / "record.json").read_text())
    assert record["command"].startswith("specd draft train ")
    assert len(record["target_fingerprint"]) > 8
    for name, least in (("chat", 0.55), ("code", 0.6)):
        first, second, third = record["acceptance"][name]["greedy"][:3]
        assert first >= least
        assert min(second, third) >= 0.85 * first


def test_a_target_of_other_blocks_is_refused(tmp_path: Path) -> None:
    target = AutoModelForCausalLM.from_pretrained(make_model_dir(tmp_path, "gpt2"))
    with pytest.raises(TrainError, match="begins as a llama block, and gpt2 has others"):
        eagle3.make(target, Vocabulary(torch.arange(3), torch.arange(3)))
