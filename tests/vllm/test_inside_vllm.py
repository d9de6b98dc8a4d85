"""Our scheduler in a real vLLM: `make test-vllm`. vLLM takes it by the entry point of the plugin, as once installed."""

import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from specd.models.resolve import resolve_target
from tests.vllm.inside import PROMPTS, TOKENS

ROOT = Path(__file__).parents[2]


def as_installed(folder: Path) -> None:
    """Have a Python with this folder on its path find the entry points that the package declares for vLLM."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {where}" for name, where in found.items())])
        for group, found in declared.items()
    ]
    installed = folder / "specd_llm-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: specd-llm\nVersion: 0\n")
    (installed / "entry_points.txt").write_text("\n".join(groups) + "\n")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Any:
    python = os.environ.get("TEST_WITH_VLLM")
    if not python:
        pytest.skip("takes a minute and an environment with vLLM: `make test-vllm`")
    folder = tmp_path_factory.mktemp("vllm")
    as_installed(folder)
    done = subprocess.run(
        [python, "-m", "tests.vllm.inside", str(resolve_target("demo"))],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{folder}"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_plugin_brings_our_scheduler(shown):
    assert shown["scheduler"] == "SpecdScheduler"
    assert shown["hello"] == [["ngram"]]


def test_texts_are_the_same_whatever_is_drafted(shown):
    """Test that in fp32 static drafts and ours change no greedy text."""
    assert shown["drafted when off"] == 0
    assert shown["equal"] == [True, True]


def test_vllm_counts_what_we_report(shown):
    assert shown["ours"]["draft_tokens"] > 20
    assert shown["ours"] == shown["vllm"]


def test_ends_are_told_with_their_tokens(shown):
    assert shown["ends"] == [["length", TOKENS]] * (2 * len(PROMPTS))


def test_a_request_has_its_own_length_class_and_name(shown):
    assert shown["asked"] == [["mine", "code"]]
    assert 0 < shown["asked k"] <= 2


def test_drafted_tokens_are_counted_by_position_for_vllms_own_metrics(shown):
    assert shown["by position"] == [2, 1, 1]


def test_asynchronous_scheduling_is_steered_too(shown):
    """Test that vLLM's own asynchronous scheduler, with ours in it, cuts drafts that are not there yet, brings each
    text to its end, and keeps nothing of it.
    """
    assert shown["asynchronous"] == {
        "ahead": "Ahead",
        "drafts": [0, 1, 3],
        "placeholders": True,
        "tokens": [9, 30],
        "kept": [0, 0],
    }


def test_another_version_would_be_refused(shown):
    assert "is not one that specd was tried with (0.1.0)" in shown["versions"]
