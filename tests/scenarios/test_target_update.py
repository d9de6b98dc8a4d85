"""A real target replaced under real drafts: the text is the new one's, and the canary tells what became of the drafts.

The draft model is the first target itself, so everything is accepted at first.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.daemon.daemon_process import DEADLINE
from tests.scenarios.stage import RealDaemon, Stage
from tests.tiny import make_noisy_dir

BODY = {"prompt": "the daemon drafts", "max_tokens": 60, "temperature": 0.0, "ignore_eos": True}
PROMPTS = [f"{verb} the {noun}" for verb in ("add", "draft", "return") for noun in "abcdefgh"]


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory, tiny_dir: Path) -> Path:
    return make_noisy_dir(tiny_dir, tmp_path_factory.mktemp("noisy"), noise=0.3)


@pytest.fixture(scope="module")
def daemon(stage: Stage, tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealDaemon]:
    prompts = tmp_path_factory.mktemp("canary") / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    with stage.daemon(
        engine={"max_running": 8},
        model={"draft": {"kind": ["model"], "model": str(tiny_dir)}},
        policy={"kind": "static", "static_k": 2},
        canary={"enabled": True, "prompts": str(prompts), "tokens": 32},
    ) as daemon:
        yield daemon.ready()


def change(daemon: RealDaemon, path: Path, **more: str) -> httpx2.Response:
    body = {"path": str(path), **more}
    return httpx2.post(daemon.admin + "/admin/v1/target", json=body, timeout=DEADLINE)


def text(daemon: RealDaemon, **specd: Any) -> str:
    answer = daemon.post("/v1/completions", BODY | {"specd": specd}).json()
    return answer["choices"][0]["text"]


def cached(daemon: RealDaemon) -> int:
    """Tokens of a prompt whose keys were there already."""
    usage = daemon.post("/v1/completions", BODY | {"prompt": "the target decides " * 12}).json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


def firing(daemon: RealDaemon) -> list[dict[str, Any]]:
    return [one for one in daemon.get("/admin/v1/alerts").json()["alerts"] if one["state"] == "firing"]


def test_the_same_weights_under_another_name_are_no_alarm(daemon, tiny_dir, tmp_path):
    """Test that a copy with another revision, whose drafts are as good as before, raises nothing."""
    copy = Path(shutil.copytree(tiny_dir, tmp_path / "copy"))
    found = change(daemon, copy, revision="copy").json()
    (judged,) = found["canary"]
    assert (judged["verdict"], judged["change"]) == ("fine", 0.0), judged
    assert judged["examined"] <= 2000
    assert found["target_revision"] == "copy"
    assert [one for one in firing(daemon) if one["labels"].get("kind") == "canary"] == []


def test_a_changed_target_is_told_by_its_canary(daemon, noisy):
    """Test that a target that its drafts no longer fit serves its own text out of its own keys, with an alert that has
    the numbers, and that a rollback brings the old text back and ends the alert."""
    before = text(daemon)
    assert text(daemon, speculate="off") == before
    assert cached(daemon) == 0 < cached(daemon)
    found = change(daemon, noisy).json()
    (judged,) = found["canary"]
    assert (judged["proposer"], judged["verdict"]) == ("model", "bad")
    assert judged["before"] == 1.0
    assert judged["high"] < -0.02
    assert text(daemon) == text(daemon, speculate="off") != before
    assert cached(daemon) == 0
    (alert,) = [one for one in firing(daemon) if one["labels"].get("kind") == "canary"]
    assert alert["name"] == "SpecdAcceptanceDrift"
    assert alert["labels"]["target_revision"] == found["target_revision"]
    assert "acceptance of model fell: 1.000 to 0." in alert["annotations"]["summary"]
    assert "target update at" in alert["annotations"]["suspected_cause"]
    rolled = httpx2.post(daemon.admin + "/admin/v1/target/rollback").json()
    assert rolled["seconds"] < 2
    assert text(daemon) == before
    assert [one for one in firing(daemon) if one["labels"].get("kind") == "canary"] == []


def test_the_canary_on_demand_is_no_traffic(daemon):
    """Test that a replay beside traffic is answered with its numbers, and neither metrics nor classes know of it."""
    series = 'specd_spec_decode_num_drafts_total{proposer="model"}'
    before = daemon.metrics()[series]
    found = httpx2.post(daemon.admin + "/admin/v1/target/canary", timeout=DEADLINE).json()
    assert found["canary"][0]["verdict"] == "fine"
    assert daemon.metrics()[series] == before
    assert "canary" not in daemon.status()["acceptance"]
