"""`specd draft list` and `specd draft check`, and `specd check` of a draft model."""

import json
import math
import struct
from pathlib import Path

import pytest

from specd.cli import main
from tests.daemon.model_directory import safetensors, write_model
from tests.other_tokenizer import give_tokenizer, make_other_tokenizer
from tests.tiny import make_tokenizer

Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_outer_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("specd.config.layers.DEFAULT_PATH", tmp_path / "etc" / "specd.toml")
    monkeypatch.setenv("SPECD_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Path]:
    """A target, a draft of its family, and one of another family."""
    tokenizers = {"target": make_tokenizer(), "small": make_tokenizer(), "other": make_other_tokenizer()}
    return {
        name: give_tokenizer(write_model(tmp_path / name, vocab_size=400), tokenizer)
        for name, tokenizer in tokenizers.items()
    }


def config(tmp_path: Path, target: Path, draft: Path | None = None, *more: str) -> str:
    file = tmp_path / "specd.toml"
    lines = [f'[model.target]\npath = "{target}"']
    if draft is not None:
        lines += [f'[model.draft]\nkind = ["ngram", "model"]\nmodel = "{draft}"', *more]
    file.write_text("\n".join(lines))
    return str(file)


def test_check_tells_what_a_directory_is_and_whether_it_fits(models: dict[str, Path], capsys: Said) -> None:
    """Test that a draft model passes for its family, and exits 2 by a sentence for another."""
    target = ["--target", str(models["target"])]
    assert main(["draft", "check", str(models["small"]), *target]) == 0
    said = capsys.readouterr().out
    assert "holds drafts of kind model" in said
    assert f"ok: it can draft for {models['target']}" in said
    assert main(["draft", "check", str(models["other"]), *target]) == 2
    assert "the draft model has another tokenizer: token 0 is" in capsys.readouterr().err
    assert main(["draft", "check", str(models["other"]), *target, "--mapped"]) == 0


@pytest.mark.parametrize(
    ("file", "content", "kind"),
    [
        ("model.safetensors", safetensors("fc.weight", "midlayer.x"), "eagle"),
        ("model.safetensors", safetensors("0.0.linear.weight"), "medusa"),
        ("medusa_lm_head.pt", b"", "medusa"),
        ("pytorch_model.bin", b"", "eagle"),
    ],
)
def test_heads_are_told_by_their_weights(
    file: str, content: bytes, kind: str, tmp_path: Path, capsys: Said
) -> None:
    """Test that each layout of a head is recognised from names alone."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / file).write_bytes(content)
    assert main(["draft", "check", str(tmp_path)]) == 0
    assert f"holds drafts of kind {kind}" in capsys.readouterr().out


def head(path: Path, **tensors: list[int]) -> str:
    """A head of these shapes, of single bytes, in safetensors."""
    header, at = {}, 0
    for name, shape in tensors.items():
        size = math.prod(shape)
        header[name.replace("__", ".")] = {"dtype": "U8", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    return str(path)


def test_heads_for_another_target_are_refused_by_their_sizes(tmp_path: Path, capsys: Said) -> None:
    """Test that hidden size and vocabulary are compared with the target's, before anything is loaded."""
    target = str(write_model(tmp_path / "target", hidden_size=12, vocab_size=40))
    fits = head(tmp_path / "fits", fc__weight=[12, 36], t2d=[40])
    older = head(tmp_path / "older", fc__weight=[12, 24])
    narrow = head(tmp_path / "narrow", fc__weight=[8, 24 * 2], t2d=[40])
    tokens = head(tmp_path / "tokens", fc__weight=[12, 36], t2d=[41])
    medusa = head(tmp_path / "medusa", **{"0__0__linear__weight": [9, 9]})
    assert main(["draft", "check", fits, "--target", target]) == 0
    assert main(["draft", "check", older, "--target", target]) == 0
    for wrong, said in (
        (narrow, "the head reads hidden states of 16 or 24, and the target's hidden_size is 12"),
        (tokens, "the head speaks a vocabulary of 41, and the target's vocab_size is 40"),
        (medusa, "the head reads hidden states of 9, and the target's hidden_size is 12"),
    ):
        assert main(["draft", "check", wrong, "--target", target]) == 2
        assert said in capsys.readouterr().err


def test_a_directory_without_drafts_is_told(tmp_path: Path, capsys: Said) -> None:
    """Test that nothing, and a folder without weights, exit 2 by a sentence."""
    assert main(["draft", "check", str(tmp_path / "none")]) == 2
    assert "there is no such directory" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{}")
    assert main(["draft", "check", str(tmp_path)]) == 2
    assert "holds no weights" in capsys.readouterr().err


def test_list_shows_what_the_config_names(models: dict[str, Path], tmp_path: Path, capsys: Said) -> None:
    """Test that a configured draft model is listed with its size and whether it fits."""
    assert main(["draft", "list", "-c", config(tmp_path, models["target"], models["small"])]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("config")]
    assert line.split() == ["config", "model", "0", "MiB", "yes", str(models["small"])]
    assert main(["draft", "list", "-c", config(tmp_path, models["target"], models["other"])]) == 0
    assert "no" in capsys.readouterr().out.splitlines()[-1].split()


def test_specd_check_tells_of_the_draft_model(models: dict[str, Path], tmp_path: Path, capsys: Said) -> None:
    """Test that a pair that does not fit, a draft that is missing, and a kind without its model exit 2."""
    target = models["target"]
    assert main(["check", "-c", config(tmp_path, target, models["small"])]) == 0
    assert main(["check", "-c", config(tmp_path, target, models["other"])]) == 2
    assert "model.draft.model: the draft model has another tokenizer" in capsys.readouterr().err
    assert main(["check", "-c", config(tmp_path, target, models["other"], 'vocabulary = "mapped"')]) == 0
    assert main(["check", "-c", config(tmp_path, target, tmp_path / "none")]) == 2
    assert f"model.draft.model: {tmp_path}/none: there is no such directory" in capsys.readouterr().err
    assert main(["check", "-c", config(tmp_path, target), "--set", "model.draft.kind=model"]) == 2
    assert 'kind "model" needs a smaller model to draft with' in capsys.readouterr().err
