"""What training writes is what drafts: on a tiny target by value, and the head in the package by its files."""

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
from tests.tiny import VOCABULARY, make_model_dir

CPU = torch.device("cpu")


def test_what_is_written_drafts_as_what_was_trained(tiny_dir: Path, tmp_path: Path) -> None:
    """The dense head of the training against the loaded one over paged keys, for every row of a text."""
    target = AutoModelForCausalLM.from_pretrained(tiny_dir, dtype=torch.float32)
    kept = torch.arange(0, VOCABULARY, 3)
    places = torch.full((VOCABULARY,), -1).index_copy_(0, kept, torch.arange(len(kept)))
    trained = eagle3.make(target, Vocabulary(kept, places))
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter)).copy_(parameter.bfloat16())
    eagle3.write(trained, Vocabulary(kept, places), target, tmp_path / "head")
    files = read_eagle(tmp_path / "head", Fit(64, VOCABULARY, 4))
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


def test_a_target_of_other_blocks_is_refused(tmp_path: Path) -> None:
    target = AutoModelForCausalLM.from_pretrained(make_model_dir(tmp_path, "gpt2"))
    with pytest.raises(TrainError, match="begins as a llama block, and gpt2 has others"):
        eagle3.make(target, Vocabulary(torch.arange(3), torch.arange(3)))
