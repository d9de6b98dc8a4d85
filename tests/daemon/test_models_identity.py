"""Fingerprints of models, and where they are kept."""

from pathlib import Path

import pytest

from specd.config.target import TargetSection
from specd.models import cache as cache_module
from specd.models import manifest
from specd.models.cache import HashCache, cache_dir
from specd.models.identity import describe, fingerprint
from tests.daemon.model_directory import safetensors, write_model, write_sharded


@pytest.fixture
def hashes(tmp_path: Path) -> HashCache:
    return HashCache(tmp_path / "cache" / "hashes.json")


def test_copies_have_the_same_fingerprint(tmp_path: Path, hashes: HashCache) -> None:
    """Test that place and time do not matter, and that splitting the weights in files does."""
    one, two = write_model(tmp_path / "one"), write_model(tmp_path / "two")
    assert fingerprint(one, hashes) == fingerprint(two, hashes)
    assert fingerprint(one, hashes) != fingerprint(write_sharded(tmp_path / "three"), hashes)


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "adapter_config.json",
        "adapter_model.safetensors",
    ],
)
def test_each_defining_file_changes_the_fingerprint(name: str, tmp_path: Path, hashes: HashCache) -> None:
    """Test that weights, config, tokenizer, template and adapters each make another revision."""
    model = write_model(tmp_path / "model")
    before = fingerprint(model, hashes)
    (model / name).write_bytes(safetensors("c") if name.endswith("safetensors") else b'{"model_type": "x"}')
    assert fingerprint(model, hashes) != before


def test_second_start_reads_no_weights(
    tmp_path: Path, hashes: HashCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that an unchanged model is identified from the remembered hashes alone."""
    model = write_model(tmp_path / "model")
    first = fingerprint(model, hashes)

    def no_reading(path: Path) -> None:
        raise AssertionError(f"{path} was read again")

    monkeypatch.setattr(cache_module, "stamp", no_reading)
    assert fingerprint(model, hashes) == first


def test_cache_that_cannot_be_used_is_only_slow(tmp_path: Path, hashes: HashCache) -> None:
    """Test that a damaged and an unwritable hash cache give the same fingerprint as a sound one."""
    model = write_model(tmp_path / "model")
    first = fingerprint(model, hashes)
    hashes.path.write_text("{")
    assert fingerprint(model, hashes) == first
    assert fingerprint(model, HashCache(model / "config.json" / "hashes.json")) == first


def test_description_prefers_what_the_config_says(tmp_path: Path, hashes: HashCache) -> None:
    """Test that name and revision come from the config where it sets them, else from the model."""
    model = write_model(tmp_path / "model", quantization_config={"quant_method": "awq"})
    plain = describe(TargetSection(path=str(model)), model, hashes)
    assert (plain.name, plain.revision, plain.quantization) == ("model", fingerprint(model, hashes), "awq")
    named = describe(TargetSection(path=str(model), name="n", revision="r1"), write_model(model), hashes)
    assert (named.name, named.revision, named.quantization) == ("n", "r1", "none")


def test_cache_directory_follows_the_environment() -> None:
    """Test that the process's own variable comes before systemd's, and that before the user's."""
    env = {"XDG_CACHE_HOME": "/x"}
    assert cache_dir(env) == Path("/x/specd")
    env["CACHE_DIRECTORY"] = "/var/cache/specd:/var/cache/other"
    assert cache_dir(env) == Path("/var/cache/specd")
    env["SPECD_CACHE_DIR"] = "/own"
    assert cache_dir(env) == Path("/own")


def test_a_dequantised_model_that_was_edited_is_another(tmp_path: Path, hashes: HashCache) -> None:
    """Test that what was made from a GGUF has that file's name only as long as it is what was made."""
    model = write_model(tmp_path / "model")
    manifest.write(model, "a.gguf", "5" * 64)
    assert fingerprint(model, hashes) == "5" * 12
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert fingerprint(model, hashes) != "5" * 12
