"""What is told about a model directory before anything is loaded."""

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from specd.errors import ModelError
from specd.models import directory
from specd.models.architecture import unsupported
from specd.models.resolve import public_name, resolve_target
from tests.daemon.model_directory import safetensors, write_model, write_sharded


@pytest.mark.parametrize("write", [write_model, write_sharded])
def test_whole_model_has_no_faults(write: Callable[[Path], Path], tmp_path: Path) -> None:
    """Test that a complete directory passes, in one file and in several."""
    assert directory.faults(write(tmp_path)) == []


def test_a_tokenizer_is_seen_to_be_whole_without_its_words_as_objects(tmp_path: Path) -> None:
    """Test that this takes about as much memory as the file: many small objects in the midst of long-lived ones leave
    the daemon larger after each update.
    """
    file = write_model(tmp_path) / "tokenizer.json"
    file.write_text(json.dumps({"model": {"vocab": {f"word {n}": n for n in range(50_000)}}}))
    tracemalloc.start()
    try:
        assert directory.faults(tmp_path) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * file.stat().st_size
    file.write_text(file.read_text()[:-1])
    assert "tokenizer.json: not valid JSON" in directory.faults(tmp_path)[0]


def test_missing_directory_and_file_in_its_place(tmp_path: Path) -> None:
    """Test that a path that leads nowhere, or to a file, is told as such."""
    assert directory.faults(tmp_path / "no") == [f"{tmp_path}/no: there is no such directory"]
    (tmp_path / "file").touch()
    assert directory.faults(tmp_path / "file") == [f"{tmp_path}/file: is a file, not a model directory"]


def test_empty_directory_lacks_everything(tmp_path: Path) -> None:
    """Test that config, tokenizer and weights are each missed by name."""
    found = "\n".join(directory.faults(tmp_path))
    assert all(name in found for name in ("config.json", "tokenizer.json", "model.safetensors"))


@pytest.mark.parametrize("keep", [-1, -8, 20, 8, 3, 0])
def test_half_written_weights_are_noticed(keep: int, tmp_path: Path) -> None:
    """Test that weights cut off anywhere, within tensors, header or length, are refused."""
    weights = write_model(tmp_path) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    (fault,) = directory.faults(tmp_path)
    assert "copy it again" in fault


def test_weights_with_bytes_to_spare_are_refused(tmp_path: Path) -> None:
    """Test that a file longer than its header says is not taken for whole."""
    (write_model(tmp_path) / "model.safetensors").write_bytes(safetensors("a") + b"x")
    (fault,) = directory.faults(tmp_path)
    assert "half-written" in fault


def test_absurd_header_length_is_not_believed(tmp_path: Path) -> None:
    """Test that a length of exabytes is refused rather than allocated."""
    (write_model(tmp_path) / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    (fault,) = directory.faults(tmp_path)
    assert "no readable safetensors header" in fault


def test_missing_shard_is_named(tmp_path: Path) -> None:
    """Test that a file that only the index knows is missed by name."""
    (write_sharded(tmp_path) / "two.safetensors").unlink()
    assert directory.faults(tmp_path) == [
        f"{tmp_path}/two.safetensors: missing; the model is incomplete, copy it again"
    ]


def test_shard_without_its_tensor_is_named(tmp_path: Path) -> None:
    """Test that a shard that lacks what the index promises is found by the tensor's name."""
    (write_sharded(tmp_path) / "two.safetensors").write_bytes(safetensors("c"))
    (fault,) = directory.faults(tmp_path)
    assert "b is not in the file that it names" in fault


def test_other_formats_are_told_how_to_convert(tmp_path: Path) -> None:
    """Test that pickled weights are refused with the way out."""
    (write_model(tmp_path) / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    (fault,) = directory.faults(tmp_path)
    assert "pytorch_model.bin" in fault
    assert "save_pretrained" in fault


def test_damaged_json_is_told(tmp_path: Path) -> None:
    """Test that a config.json that is cut off is a fault of that file."""
    (write_model(tmp_path) / "config.json").write_text('{"model_type"')
    (fault,) = directory.faults(tmp_path)
    assert fault.startswith(f"{tmp_path}/config.json: not valid JSON")


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"model_type": "bloom"}, "attention"),
        ({"model_type": "vit"}, "not a causal language model"),
        ({"model_type": "invented"}, "not a causal language model"),
        ({"model_type": "bart", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "mamba"}, "mamba"),
        ({"model_type": "llama", "layer_types": ["full_attention", "conv"]}, "conv"),
        ({"model_type": "phi3", "rope_scaling": {"type": "longrope"}}, "longrope"),
        ({"model_type": "llama", "rope_parameters": {"rope_type": "dynamic"}}, "dynamic"),
        ({"architectures": ["X"]}, "model_type"),
    ],
)
def test_unsupported_architecture_is_refused_with_the_reason(config: dict[str, object], word: str) -> None:
    """Test that what the engine cannot run is refused from config.json alone."""
    reason = unsupported(config)
    assert reason is not None
    assert word in reason


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3_text", "mistral", "gpt_neox", "t5", "umt5"])
def test_supported_architectures_pass(kind: str) -> None:
    """Test that families with a pluggable attention pass, one whose folder has another name included, and T5's."""
    assert unsupported({"model_type": kind}) is None


def test_the_name_of_a_target_says_nothing_of_where_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that what is trained for the demo model or one of the hub names it as others find it."""
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    assert public_name("demo") == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert public_name("some-org/some-model") == "some-org/some-model"
    assert public_name(str(tmp_path / "mine")) == public_name(".") == public_name("../mine/") == "mine"


def test_resolve_checks_a_local_directory(tmp_path: Path) -> None:
    """Test that a whole directory is returned, and that a broken one raises all its faults."""
    assert resolve_target(str(write_model(tmp_path))) == tmp_path
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bloom"}))
    with pytest.raises(ModelError) as caught:
        resolve_target(str(tmp_path))
    assert len(str(caught.value).splitlines()) == 2


def test_demo_that_was_not_fetched_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that the missing demo model is answered with the command that brings it."""
    monkeypatch.setenv("SPECD_CACHE_DIR", str(tmp_path))
    with pytest.raises(ModelError, match="run `specd models fetch demo` once"):
        resolve_target("demo")


def test_hub_name_that_was_not_downloaded_is_told_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that a hub name is looked up locally only when no download is allowed."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="neither a local directory nor downloaded yet"):
        resolve_target("some-org/some-model", download=False)
