"""What follows when the canary finds a draft that has fallen. The fake engine accepts nothing for a poor target."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from specd.cli import main
from specd.config.layers import load
from specd.errors import ConfigError
from specd.target.canary import shipped_prompts
from tests.daemon.conftest import Daemons
from tests.daemon.daemon_process import DaemonProcess, wait_until
from tests.daemon.test_target_updates import other_model, rollback, shown, update

PROMPTS = [f"prompt {letter}" for letter in "abcdefghijkl"]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemons, DaemonProcess, Path]]:
    directory = tmp_path_factory.mktemp("canary")
    prompts = directory / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    daemons = Daemons(directory)
    daemons.engine.behave(step_seconds=0, poor_model="poor")
    config = f"[canary]\nprompts = {json.dumps(str(prompts))}\ntokens = 40\n"
    yield daemons, daemons.start(config).ready(), other_model(directory / "poor")
    daemons.close()


def react(daemon: DaemonProcess, how: str, more: str = "") -> None:
    config = daemon.config_file.read_text().partition("[drift]")[0]
    daemon.config_file.write_text(f'{config}[drift]\non_canary_fail = "{how}"\n{more}')
    assert main(["reload", "--admin", daemon.admin.removeprefix("http://")]) == 0


def drafted(daemon: DaemonProcess) -> int:
    body = {"prompt": "ab", "max_tokens": 8, "specd": {"report": True, "k": 2}}
    return daemon.post("/v1/completions", body).json()["specd"]["drafted"]


def drafts(daemon: DaemonProcess) -> list[str]:
    return shown(daemon)["current"]["proposers"]


def test_by_default_it_is_told(house):
    """Test that a draft that has fallen serves on, with an alert for the new pair that names position 1 and both rates,
    and that the rollback ends it."""
    _, daemon, poor = house
    answer = update(daemon, poor).json()
    (judged,) = answer["canary"]
    assert (judged["verdict"], judged["after"], judged["acceptance_by_position"][0]) == ("bad", 0.0, 0.0)
    assert "acceptance of ngram fell" in answer["text"]
    assert drafts(daemon) == ["ngram"]
    (alert,) = [one for one in daemon.get("/admin/v1/alerts").json()["alerts"] if not one["endsAt"]]
    assert (alert["name"], alert["labels"]["kind"]) == ("SpecdAcceptanceDrift", "canary")
    assert alert["labels"]["target_revision"] == answer["target_revision"]
    assert alert["annotations"]["suspected_cause"].startswith("target update at ")
    rollback(daemon)
    assert [one for one in daemon.get("/admin/v1/alerts").json()["alerts"] if not one["endsAt"]] == []


@pytest.mark.parametrize(("how", "left"), [("off", []), ("ngram", ["ngram"])])
def test_who_drafts_after_a_fall(how, left, house):
    """Test that the proposer is silenced, or prompt lookup takes over, for that target alone."""
    _, daemon, poor = house
    react(daemon, how)
    update(daemon, poor)
    assert drafts(daemon) == left
    rollback(daemon)
    assert drafts(daemon) == ["ngram"]
    assert drafted(daemon) > 0


def test_an_update_can_be_ruled_out(house):
    """Test that with "rollback" the fallen target never serves, that it says why, and that this is counted and told."""
    _, daemon, poor = house
    react(daemon, "rollback")
    before = shown(daemon)["current"]
    answer = update(daemon, poor)
    assert answer.status_code == 422
    assert "acceptance of ngram fell" in answer.json()["error"]["message"]
    assert shown(daemon)["current"] == before
    assert daemon.metric('specd_target_updates_total{outcome="ruled_out"}') == 1
    (alert,) = wait_until(
        lambda: [one for one in daemon.get("/admin/v1/alerts").json()["alerts"] if one["state"] == "firing"],
        "the alert",
    )
    assert alert["name"] == "SpecdTargetUpdateRefused"
    assert "acceptance of ngram fell" in alert["annotations"]["description"]
    assert alert["annotations"]["target_revision"] == before["target_revision"]


def test_a_rollback_is_never_ruled_out(house):
    """Test that the way back to a target of which less is accepted is open with "rollback", though no engine of it is
    kept, as from one that writes the same for ever; and that nobody calls that a fall."""
    _, daemon, poor = house
    good = shown(daemon)["current"]["path"]
    react(daemon, "alert")
    update(daemon, poor)
    react(daemon, "rollback", "[model.target.update]\nkeep_seconds = 0\n")
    update(daemon, good)
    wait_until(
        lambda: shown(daemon)["previous"] == {"path": str(poor), "kept": False}, "the end of its engine"
    )
    answer = rollback(daemon)
    assert (answer.status_code, answer.json()["canary"]) == (200, [])
    assert shown(daemon)["current"]["path"] == str(poor)
    opened = [one for one in daemon.get("/admin/v1/alerts").json()["alerts"] if not one["endsAt"]]
    assert [one for one in opened if one["name"] == "SpecdAcceptanceDrift"] == []
    react(daemon, "alert")
    update(daemon, good)


def test_what_serves_can_be_asked(house, capsys):
    """Test that `specd target canary` replays beside the traffic and tells what it found, and no class or metric counts
    it as traffic."""
    _, daemon, _ = house
    before = daemon.metric('specd_spec_decode_num_drafts_total{proposer="ngram"}')
    assert main(["target", "canary", "--admin", daemon.admin.removeprefix("http://")]) == 0
    assert "acceptance of ngram did not fall" in capsys.readouterr().out
    assert daemon.metric('specd_spec_decode_num_drafts_total{proposer="ngram"}') == before
    assert "canary" not in daemon.status()["acceptance"]


def test_who_has_fallen_is_still_off_after_a_restart(house, tmp_path):
    """Test that with "off" a proposer that was silenced does not draft again because the daemon was started anew, and
    that it does where that is no longer configured."""
    daemons, first, poor = house
    env = {"SPECD_STATE_DIR": str(tmp_path / "state"), "SPECD_CACHE_DIR": str(tmp_path / "cache")}
    config = first.config_file.read_text()
    canary = config[config.index("[canary]") :].partition("[drift]")[0]
    before = daemons.start(f'{canary}[drift]\non_canary_fail = "off"\n', env=env).ready()
    update(before, poor)
    assert drafts(before) == []
    before.process.terminate()
    assert before.wait() == 0
    served, daemons.model = daemons.model, poor
    try:
        for how, left in (("off", []), ("alert", ["ngram"])):
            after = daemons.start(f'{canary}[drift]\non_canary_fail = "{how}"\n', env=env).ready()
            assert drafts(after) == left
            after.process.terminate()
            assert after.wait() == 0
    finally:
        daemons.model = served


BAD = {
    "an empty prompt": ('{"prompt": "a"}\n{"prompt": " "}\n', "line 2: the prompt is empty"),
    "no prompt": ('{"text": "a"}\n', 'line 1: write it as {"prompt": "…"}'),
    "no JSON": ("hello\n", 'line 1: write it as {"prompt": "…"}'),
    "twice": ('{"prompt": "a"}\n\n{"prompt": "a"}\n', "holds the prompt 'a' twice"),
    "nothing": ("\n", "holds no prompts"),
    "no file": (None, "cannot be read (No such file or directory)"),
}


@pytest.mark.parametrize("case", BAD)
def test_prompts_that_cannot_be_used(case, tmp_path):
    """Test that a file of prompts is refused with the config, naming the line."""
    content, sentence = BAD[case]
    file = tmp_path / "prompts.jsonl"
    if content is not None:
        file.write_text(content)
    config = tmp_path / "specd.toml"
    config.write_text(f'[canary]\nprompts = "{file}"\n')
    with pytest.raises(ConfigError) as refused:
        load(config, env={})
    assert sentence in str(refused.value)
    assert "canary" in str(refused.value)


def test_the_prompts_of_the_package():
    """Test that there are as many as docs and config say."""
    assert len(shipped_prompts()) == 48


def test_a_restart_is_an_update_too(house, tmp_path):
    """Test that a daemon learns by itself what its drafts come to, and that one that is started with another target
    than the last one had replays the canary by itself, and raises the alarm."""
    daemons, _, poor = house
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    config = f"[canary]\nprompts = {json.dumps(str(prompts))}\ntokens = 40\n"
    env = {"SPECD_STATE_DIR": str(tmp_path / "state"), "SPECD_CACHE_DIR": str(tmp_path / "cache")}
    first = daemons.start(config, env=env).ready()
    file = tmp_path / "state" / "canary" / "serving.json"
    wait_until(
        lambda: file.exists() and json.loads(file.read_text())["counts"],
        "what the first one's drafts come to",
    )
    assert shown(first)["canary"] == []
    first.process.terminate()
    assert first.wait() == 0
    served, daemons.model = daemons.model, poor
    try:
        second = daemons.start(config, env=env).ready()
    finally:
        daemons.model = served
    wait_until(lambda: shown(second)["canary"], "the canary")
    assert shown(second)["canary"][0]["verdict"] == "bad"
    open_alerts = wait_until(
        lambda: [one for one in second.get("/admin/v1/alerts").json()["alerts"] if one["state"] == "firing"],
        "the alarm",
    )
    assert open_alerts[0]["labels"]["kind"] == "canary"
