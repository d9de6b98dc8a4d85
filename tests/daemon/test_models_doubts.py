"""Pairs that run and may not be worth it, told from files alone."""

import json
import shutil
from pathlib import Path

import pytest

from specd.config.schema import Config, DraftSection
from specd.errors import ModelError
from specd.models.cache import HashCache
from specd.models.doubts import alike, doubts_about
from specd.models.drafts import Drafts, find_drafts
from specd.models.identity import fingerprint
from specd.target.files import DraftChoice, find_files
from tests.daemon.model_directory import write_model
from tests.tiny import make_model_dir
from tests.tiny_heads import make_eagle_dir


@pytest.fixture
def hashes(tmp_path: Path) -> HashCache:
    return HashCache(tmp_path / "hashes.json")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_model(tmp_path / "target", hidden_size=8, eos_token_id=1)


def of_model(target: Path, draft: Path, hashes: HashCache) -> list[str]:
    return list(doubts_about(Drafts(("model",), model=draft), target, hashes))


def test_a_copy_raises_no_doubts(target, hashes, tmp_path):
    """Test that a draft model with the target's template and ends is not doubted."""
    assert of_model(target, Path(shutil.copytree(target, tmp_path / "draft")), hashes) == []


def test_a_draft_that_reads_otherwise_is_doubted(target, hashes, tmp_path):
    """Test that another chat template and other ends of a text are each a sentence, wherever the files say them."""
    draft = write_model(tmp_path / "draft", eos_token_id=1)
    (draft / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    (found,) = of_model(target, draft, hashes)
    assert "another chat template" in found
    (target / "chat_template.jinja").write_text("{{ messages }}")
    assert of_model(target, draft, hashes) == []
    (draft / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    (found,) = of_model(target, draft, hashes)
    assert "ends its texts with [1, 2] and the target with [1]" in found


def test_a_head_of_another_revision_is_doubted(target, hashes, tmp_path):
    """Test that a head that was trained for other weights is told by its record, and one for these is not."""
    head = write_model(tmp_path / "head")
    drafts = Drafts(("eagle",), head=head)
    assert list(doubts_about(drafts, target, hashes)) == []
    (head / "record.json").write_text(json.dumps({"target_fingerprint": "0123456789ab"}))
    (found,) = doubts_about(drafts, target, hashes)
    assert "was trained for target 0123456789ab, and this one is" in found
    (head / "record.json").write_text(json.dumps({"target_fingerprint": fingerprint(target, hashes)}))
    assert list(doubts_about(drafts, target, hashes)) == []


def test_doubts_can_refuse_the_pair(tmp_path, monkeypatch):
    """Test that on_mismatch decides whether a doubted pair is served with its doubts, or refused with the first."""
    monkeypatch.setenv("SPECD_CACHE_DIR", str(tmp_path / "cache"))
    target, draft = make_model_dir(tmp_path / "target"), make_model_dir(tmp_path / "draft")
    (draft / "chat_template.jinja").write_text("{{ messages }}")

    def config(on_mismatch: str) -> Config:
        section = {"kind": "model", "model": str(draft), "on_mismatch": on_mismatch}
        return Config.model_validate({"model": {"target": {"path": str(target)}, "draft": section}})

    served = config("alert")
    assert len(find_files(served, served.model.target, DraftChoice()).doubts) == 1
    refused = config("refuse")
    with pytest.raises(ModelError, match="another chat template"):
        find_files(refused, refused.model.target, DraftChoice())


def test_a_head_goes_on_when_its_target_is_replaced(hashes, tmp_path):
    """Test that where nothing is configured the head that drafts already stays if it is of the right sizes and still
    there, and that it is not lost without a doubt that says why."""
    target = make_model_dir(tmp_path / "target")
    head = make_eagle_dir(tmp_path / "head")
    found = find_drafts(DraftSection(), target, hashes, before=head)
    assert (found.kinds, found.head) == (("ngram", "eagle"), head)
    assert list(doubts_about(found, target, hashes, before=head)) == []
    larger = make_model_dir(tmp_path / "larger", hidden_size=128, num_attention_heads=8)
    gone = tmp_path / "gone"
    for model, before, why in (
        (larger, head, "hidden states of"),
        (target, gone, "there is no such directory"),
    ):
        found = find_drafts(DraftSection(), model, hashes, before=before)
        assert (found.kinds, found.head) == (("ngram",), None)
        (doubt,) = doubts_about(found, model, hashes, before=before)
        assert f"the head in {before} drafted before and cannot for this target" in doubt
        assert why in doubt


def test_models_that_cost_the_same_are_alike(target, tmp_path):
    """Test that measured costs are taken over for other weights, and not for another size."""
    assert alike(target, write_model(tmp_path / "same", hidden_size=8))
    assert not alike(target, write_model(tmp_path / "other", hidden_size=16))
