"""Weights that a trainer pushes, joined with the target that is served."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specd.errors import ModelError
from specd.models import directory
from specd.models.refresh import refreshed
from tests.tiny import make_model_dir

GATE = "model.layers.0.mlp.gate_proj.weight"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("refresh") / "target")


def pushed(target: Path, file: Path, **tensors: torch.Tensor) -> Path:
    save_file({GATE: load_file(target / "model.safetensors")[GATE] + 1} | tensors, file)
    return file


def test_some_tensors_are_replaced_and_the_others_stay(target, tmp_path):
    """Test that the new directory is whole, has the file's tensors and the target's others bit by bit, the target's
    tokenizer and template, and that the target itself is as it was."""
    before = (target / "model.safetensors").read_bytes()
    place = refreshed(target, pushed(target, tmp_path / "step.safetensors"), tmp_path / "cache", ())
    assert directory.faults(place) == []
    ours, new = load_file(target / "model.safetensors"), load_file(place / "model.safetensors")
    assert new.keys() == ours.keys()
    assert [name for name in ours if not torch.equal(ours[name], new[name])] == [GATE]
    assert torch.equal(new[GATE], ours[GATE] + 1)
    for name in ("config.json", "tokenizer.json", "chat_template.jinja"):
        assert (place / name).read_bytes() == (target / name).read_bytes()
    assert (target / "model.safetensors").read_bytes() == before


def test_another_number_format_is_taken(target, tmp_path):
    """Test that tensors pushed in bfloat16 are kept as they are: loading makes of them what the config says."""
    file = tmp_path / "step.safetensors"
    save_file({GATE: load_file(target / "model.safetensors")[GATE].bfloat16()}, file)
    place = refreshed(target, file, tmp_path / "cache", ())
    assert load_file(place / "model.safetensors")[GATE].dtype == torch.bfloat16


def test_earlier_ones_go_but_for_those_in_use(target, tmp_path):
    """Test that a push is made once, and makes room but for what is spared."""
    cache, made = tmp_path / "cache", []
    for number in range(3):
        file = tmp_path / f"{number}.safetensors"
        save_file({GATE: torch.full((96, 64), float(number))}, file)
        made.append(refreshed(target, file, cache, made[:1]))
    assert [place.exists() for place in made] == [True, False, True]
    stamp = (made[2] / "model.safetensors").stat().st_mtime_ns
    assert refreshed(target, tmp_path / "2.safetensors", cache, ()) == made[2]
    assert (made[2] / "model.safetensors").stat().st_mtime_ns == stamp


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


BAD = {
    "half-written": (lambda target, file: cut(pushed(target, file)), "half-written"),
    "vanished": (lambda target, file: None, "missing"),
    "another name": (
        lambda target, file: pushed(target, file, wrong=torch.zeros(1)),
        "the target has no tensor wrong",
    ),
    "another size": (
        lambda target, file: pushed(target, file, **{"model.norm.weight": torch.zeros(65)}),
        r"model.norm.weight is \[65\] there and \[64\] in the target",
    ),
    "nothing": (lambda target, file: save_file({}, file), "holds no tensors"),
    "no safetensors": (
        lambda target, file: file.write_text(json.dumps({})),
        "no readable safetensors header",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_joined_is_refused(case, target, tmp_path):
    """Test that a push that does not fit the target is refused by a sentence, and leaves nothing behind."""
    make, sentence = BAD[case]
    make(target, tmp_path / "step.safetensors")
    with pytest.raises(ModelError, match=sentence):
        refreshed(target, tmp_path / "step.safetensors", tmp_path / "cache", ())
    assert not (tmp_path / "cache" / "models").exists()
