"""`specd draft train`: what it starts, what it refuses, and that it holds no tensors itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specd.cli import draft_train
from specd.cli.main import main

ECHO = "import json, sys; print(json.dumps(sys.argv[1:])); sys.exit(3)"


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """In place of the training, a program that says what it was given; and a target that needs no resolving."""
    monkeypatch.setenv("SPECD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(draft_train, "PROGRAM", (sys.executable, "-c", ECHO))
    monkeypatch.setattr(draft_train, "resolve_target", lambda name: tmp_path / name)
    monkeypatch.setattr(draft_train, "fingerprint", lambda path, hashes: f"of {path.name}")
    return tmp_path


def test_the_training_is_a_process_of_its_own_and_its_exit_code_is_ours(
    echo: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main(["draft", "train", "--kind", "eagle3", "--target", "demo", "--prompts", "builtin", "--out", "head",
                 "--minutes", "2"])  # fmt: skip
    given = dict(argument.removeprefix("--").split("=", 1) for argument in json.loads(capfd.readouterr().out))
    assert code == 3
    assert given == {
        "kind": "eagle3", "prompts": "builtin", "out": "head", "tokens": "500000", "minutes": "2.0", "disk": "8.0",
        "seed": "0", "workers": "2", "target": str(echo / "demo"), "fingerprint": "of demo",
        "name": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "cache": str(echo / "cache" / "kernels"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            ["--prompts", "nowhere.jsonl"],
            '--prompts: nowhere.jsonl is no file; give one of JSON lines, or "builtin"',
        ),
        (["--tokens", "0"], "--tokens must be above 0, it is 0"),
        (["--disk", "-1"], "--disk must be above 0, it is -1.0"),
    ],
)
def test_what_cannot_be_is_refused_by_a_sentence(
    echo: Path, change: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--kind", "eagle3", "--target", "demo", "--prompts", "builtin", "--out", "head", *change]
    assert main(["draft", "train", *arguments]) == 2
    assert capsys.readouterr().err.strip() == sentence


def test_the_command_imports_no_torch() -> None:
    program = (
        "import sys; from specd.cli.main import main\n"
        "try: main(['draft', 'train', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    for word in ("eagle3", "medusa", "layer-skip", "goes on where it was"):
        assert word in done.stdout
