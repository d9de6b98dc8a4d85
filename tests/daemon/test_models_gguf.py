"""GGUF files as targets: which file is meant, converted once, identified by its own hash, served as what it holds."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from specd.cli.main import main
from specd.config.target import TargetSection
from specd.errors import ModelError
from specd.models import gguf, manifest
from specd.models.cache import HashCache
from specd.models.gguf import dequantised, gguf_file
from specd.models.identity import describe, display_name
from specd.models.resolve import resolve_target
from tests.daemon.model_directory import write_model
from tests.tiny import make_model_dir
from tests.tiny_gguf import write_gguf


class Converter:
    """Stands for the conversion; remembers what was asked."""

    def __init__(self) -> None:
        self.calls: list[Path] = []

    def __call__(self, file: Path, into: Path | None) -> None:
        assert into is not None
        self.calls.append(file)
        write_model(into)


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF" + path.name.encode())
    return path


def test_a_file_and_a_directory_with_one_file_mean_that_file(tmp_path: Path) -> None:
    file = touch(tmp_path / "a" / "tiny-q4_0.gguf")
    assert gguf_file(file) == gguf_file(file.parent) == file


def test_safetensors_come_before_a_gguf_beside_them(tmp_path: Path) -> None:
    """Test that a complete directory is served as it is."""
    touch(write_model(tmp_path) / "copy.gguf")
    assert gguf_file(tmp_path) is None


@pytest.mark.parametrize(
    ("names", "asked", "sentence"),
    [
        (["a.gguf", "b.gguf"], "", "holds 2 GGUF files, a.gguf the first: name the one to serve"),
        (["m-00001-of-00002.gguf"], "", "one part of a split GGUF"),
        (["a.gguf"], "b.gguf", "no such file"),
    ],
)
def test_what_is_not_one_whole_file_is_refused(
    tmp_path: Path, names: list[str], asked: str, sentence: str
) -> None:
    """Test the sentences for several files, a part of one, and none."""
    for name in names:
        touch(tmp_path / name)
    with pytest.raises(ModelError, match=sentence):
        gguf_file(tmp_path / asked)


def test_a_missing_file_is_not_looked_for_on_the_hub() -> None:
    """Test that DIRECTORY/FILE.gguf is no hub name."""
    with pytest.raises(ModelError, match="no such file"):
        resolve_target("models/missing.gguf")


def test_a_file_is_converted_once_and_again_only_when_it_changes(tmp_path: Path) -> None:
    """Test that the second start takes what the first one made, and that other content makes another model."""
    file, convert = touch(tmp_path / "tiny.gguf"), Converter()
    first = dequantised(file, tmp_path / "cache", convert)
    assert dequantised(file, tmp_path / "cache", convert) == first
    assert len(convert.calls) == 1
    file.write_bytes(b"GGUF, but another one")
    assert dequantised(file, tmp_path / "cache", convert) != first
    assert len(convert.calls) == 2


def test_a_damaged_conversion_is_made_anew(tmp_path: Path) -> None:
    """Test that a changed file in the cache is noticed."""
    file, convert = touch(tmp_path / "tiny.gguf"), Converter()
    place = dequantised(file, tmp_path / "cache", convert)
    (place / "tokenizer.json").write_text('{"other": 1}')
    assert dequantised(file, tmp_path / "cache", convert) == place
    assert len(convert.calls) == 2
    assert manifest.damage(place) is None


def test_the_models_identity_is_the_files_own(tmp_path: Path) -> None:
    """Test that the revision is the start of the file's SHA-256, and that status and metrics tell of the conversion."""
    file = touch(tmp_path / "tiny-q4_0.gguf")
    place = dequantised(file, tmp_path / "cache", Converter())
    target = TargetSection(path=str(file))
    info = describe(target, place, HashCache(tmp_path / "hashes.json"))
    assert info.revision == hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    assert (info.quantization, info.source) == ("gguf", "tiny-q4_0.gguf, dequantised to bfloat16")
    assert display_name(target) == "tiny-q4_0"


def test_quantising_anew_makes_another_revision(tmp_path: Path) -> None:
    """Test that int8 linears are another model than the same file without them."""
    model, hashes = write_model(tmp_path / "model"), HashCache(tmp_path / "hashes.json")
    plain, quantised = (
        describe(TargetSection(path=str(model), quantization=scheme), model, hashes)
        for scheme in ("none", "int8")
    )
    assert (quantised.revision, quantised.quantization) == (f"{plain.revision}-int8", "int8")


def test_an_unwritable_cache_is_told_with_the_way_out(tmp_path: Path) -> None:
    """Test that a cache that cannot be made is answered with the variable that moves it."""
    (tmp_path / "cache").touch()
    with pytest.raises(ModelError, match="SPECD_CACHE_DIR"):
        dequantised(touch(tmp_path / "tiny.gguf"), tmp_path / "cache", Converter())


def test_a_converter_that_dies_becomes_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test that a conversion that ends without a reason is told with the likely one."""
    monkeypatch.setattr(gguf, "_PROGRAM", ("false",))
    with pytest.raises(ModelError, match="free memory"):
        gguf.convert(touch(tmp_path / "tiny.gguf"), tmp_path / "out")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_check_says_that_a_file_will_be_converted_and_converts_nothing(
    tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that `models check` asks the converter whether it could, and no more."""
    asked: list[tuple[Path, Path | None]] = []
    monkeypatch.setattr(gguf, "convert", lambda *arguments: asked.append(arguments))
    file = touch(tmp_path / "tiny.gguf")
    assert main(["models", "check", str(file)]) == 0
    assert "the first start dequantises it to bfloat16" in capsys.readouterr().out
    assert asked == [(file, None)]
    assert not (own_cache / "models").exists()


def test_a_real_file_becomes_the_model_that_it_was_made_from(tmp_path: Path, own_cache: Path) -> None:
    """Test that weights come back in bfloat16 bit by bit and that the tokenizer says the same."""
    plain = make_model_dir(tmp_path / "plain")
    file = write_gguf(plain, tmp_path / "tiny.gguf")
    made = resolve_target(str(file))
    wanted, got = load_file(plain / "model.safetensors"), load_file(made / "model.safetensors")
    assert wanted.keys() == got.keys()
    assert all(torch.equal(wanted[name].bfloat16(), got[name]) for name in wanted)
    text = "<|im_start|>the daemon drafts, Grüße 1234<|im_end|>"
    encoders = [Tokenizer.from_file(str(path / "tokenizer.json")) for path in (plain, made)]
    assert encoders[0].encode(text).ids == encoders[1].encode(text).ids
    config = json.loads((made / "config.json").read_text())
    assert (config["num_hidden_layers"], config["eos_token_id"]) == (4, 1)
    template = json.loads((made / "tokenizer_config.json").read_text()).get("chat_template")
    assert (template or (made / "chat_template.jinja").read_text()).startswith("{% for m in messages %}")


def test_what_transformers_cannot_read_is_refused_with_its_reason(tmp_path: Path, own_cache: Path) -> None:
    """Test that an architecture that nobody knows is refused before a tensor is read."""
    file = write_gguf(make_model_dir(tmp_path / "plain"), tmp_path / "odd.gguf", architecture="rwkv6")
    with pytest.raises(ModelError, match=r"odd\.gguf: transformers cannot read it: .*rwkv6.* not supported"):
        resolve_target(str(file))
