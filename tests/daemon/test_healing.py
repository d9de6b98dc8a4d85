"""A head that has fallen is trained anew, in the background. Engine and training are fakes, the rest is real."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.daemon.conftest import Daemons
from tests.daemon.daemon_process import DaemonProcess, alive, wait_until
from tests.daemon.heads import fit_for_heads, write_head
from tests.daemon.test_target_canary import PROMPTS
from tests.daemon.test_target_updates import other_model, shown, update

CURED = "/state/heads/"


@dataclass
class House:
    """A target that all heads draft well for, one that only a head trained here does, and the way to both."""

    directory: Path
    daemons: Daemons
    poor: Path
    first: Path

    @classmethod
    def at(cls, directory: Path) -> "House":
        daemons = Daemons(directory)
        fit_for_heads(daemons.model)
        poor = fit_for_heads(other_model(directory / "poor"))
        house = cls(directory, daemons, poor, write_head(directory / "first"))
        house.engines()
        house.trainer()
        prompts = "".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS)
        (directory / "canary.jsonl").write_text(prompts)
        return house

    def engines(self, cured_by: str = CURED) -> None:
        """What those that start from now on draft well with."""
        self.daemons.engine.behave(step_seconds=0, poor_model="poor", cured_by=cured_by)

    def trainer(self, **manners: object) -> None:
        told = str(self.directory / "told")
        (self.directory / "trainer.json").write_text(json.dumps({"told": told, **manners}))

    def told(self) -> dict[str, Any]:
        """How the trainer was started last."""
        return json.loads((self.directory / "told").read_text())

    def start(self, extra: str = "", **options: object) -> DaemonProcess:
        config = (
            f"[canary]\nprompts = {json.dumps(str(self.directory / 'canary.jsonl'))}\ntokens = 40\n"
            '[drift]\non_canary_fail = "retrain"\n[drift.retrain]\nleast_prompts = 3\ntokens = 5000\n'
            f"[telemetry]\nprompts_recorded = 10\n{extra}"
        )
        trainer = f"{sys.executable} -m tests.daemon.fake_trainer {self.directory / 'trainer.json'}"
        env = {"TRAINER": trainer, **options.pop("env", {})}
        return self.daemons.start(config, env=env, **options).ready()

    def drafting(self) -> str:
        """Config with the first head."""
        return f"[model.draft]\nhead = {json.dumps(str(self.first))}\n"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House.at(tmp_path_factory.mktemp("healing"))
    yield house
    house.daemons.close()


@pytest.fixture(scope="module")
def shared(house: House) -> DaemonProcess:
    daemon = house.start(house.drafting())
    for number in range(4):
        complete(daemon, f"prompt {number}")
    return daemon


@pytest.fixture
def daemon(house: House, shared: DaemonProcess) -> Iterator[DaemonProcess]:
    """One that serves the good target with the first head."""
    house.engines()
    house.trainer()
    yield shared
    wait_until(lambda: shown(shared)["healing"]["doing"] is None, "the end of the training")
    assert update(shared, house.daemons.model).status_code == 200
    use = httpx2.post(shared.admin + "/admin/v1/draft", json={"head": str(house.first)}, timeout=30)
    assert use.status_code == 200


def complete(daemon: DaemonProcess, prompt: str) -> None:
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0.5}
    assert daemon.post("/v1/completions", body).status_code == 200


def after_a_fall(house: House, daemon: DaemonProcess) -> dict[str, Any]:
    """How the training ended that an update to the poor target leads to."""
    before = shown(daemon)["healing"]["last"]
    assert {one["verdict"] for one in update(daemon, house.poor).json()["canary"]} == {"bad"}
    return wait_until(
        lambda: (last := shown(daemon)["healing"]["last"]) != before and last, "the end of the training"
    )


def trained_heads(daemon: DaemonProcess) -> list[Path]:
    return list((daemon.config_file.parent / "state" / "heads").glob("*"))


def test_a_fallen_head_is_trained_anew_and_swapped_in(house, daemon):
    """Test that the trainer gets the recorded prompts and the target; that what it makes drafts once the canary finds
    it better; that the numbers before and after are told; and that the alert is over."""
    last = after_a_fall(house, daemon)
    assert last["ok"], last["text"]
    assert last["text"].startswith("canary: acceptance of eagle did not fall: 0.000 to 0.")
    told, (head,) = house.told(), trained_heads(daemon)
    assert [line["prompt"] for line in told["lines"]] == [f"prompt {number}" for number in range(4)]
    assert told["lines"][0]["temperature"] == 0.5
    assert (told["kind"], told["tokens"], told["workers"]) == ("eagle3", "5000", "1")
    assert told["target"] == str(house.poor)
    assert shown(daemon)["current"]["head"] == str(head)
    assert not list((daemon.config_file.parent / "state" / "training").glob("*"))
    open_alerts = [one for one in daemon.get("/admin/v1/alerts").json()["alerts"] if not one["endsAt"]]
    assert [one for one in open_alerts if one["name"] == "SpecdAcceptanceDrift"] == []
    assert "prompt 0" not in daemon.log


def test_a_head_that_was_trained_here_drafts_after_a_restart_too(house, daemon):
    """Test that where the config names no head, one that was found good for the target is taken."""
    assert after_a_fall(house, daemon)["ok"]
    head = shown(daemon)["current"]["head"]
    state = {"SPECD_STATE_DIR": str(daemon.config_file.parent / "state")}
    again = house.start(f"[model]\ntarget.path = {json.dumps(str(house.poor))}\n", env=state, model=False)
    assert shown(again)["current"]["head"] == head
    assert shown(again)["current"]["proposers"] == ["ngram", "eagle"]


def test_a_head_that_is_no_better_is_not_taken(house, daemon):
    """Test that what drafted goes on, and that nothing is left of the new head."""
    house.engines(cured_by="no head at all")
    last = after_a_fall(house, daemon)
    assert (last["ok"], last["text"].split(":")[0]) == (
        False,
        "the new head is no better than the one before",
    )
    assert shown(daemon)["current"]["head"] == str(house.first)
    assert not [head for head in trained_heads(daemon) if not (head / "proof.json").exists()]


def test_a_training_that_fails_says_why(house, daemon):
    """Test that its last words are told, and that the work is gone."""
    house.trainer(exit=3)
    assert after_a_fall(house, daemon)["text"] == "it ended with code 3: the loss is not a number"
    assert not list((daemon.config_file.parent / "state" / "training").glob("*"))
    assert "the loss is not a number" in daemon.log


def test_too_few_prompts_train_nothing(house, daemon):
    """Test that it says how many there are and what to do."""
    patch = httpx2.patch(daemon.admin + "/admin/v1/config", json={"drift.retrain.least_prompts": 50})
    assert patch.status_code == 200
    text = after_a_fall(house, daemon)["text"]
    assert "4 prompts are recorded, and drift.retrain.least_prompts asks for 50" in text
    httpx2.patch(daemon.admin + "/admin/v1/config", json={"drift.retrain.least_prompts": 3})


def test_a_target_that_has_left_needs_no_head(house, daemon):
    """Test that a training ends with the service of its target."""
    linger = house.directory / "linger"
    linger.touch()
    house.trainer(linger=str(linger))
    told = house.directory / "told"
    told.unlink(missing_ok=True)
    update(daemon, house.poor)
    wait_until(told.exists, "the training")
    update(daemon, house.daemons.model)
    wait_until(lambda: shown(daemon)["healing"]["doing"] is None, "its end")
    assert shown(daemon)["healing"]["last"]["text"] == "another target serves by now"
    assert not alive(house.told()["pid"])
    linger.unlink()


def test_the_end_of_the_daemon_ends_the_training_and_the_next_goes_on_with_it(house):
    """Test that nothing is left running, and that the next daemon starts the same training in the same folder."""
    linger = house.directory / "linger"
    linger.touch()
    house.trainer(linger=str(linger))
    (house.directory / "told").unlink(missing_ok=True)
    daemon = house.start(house.drafting())
    for number in range(4):
        complete(daemon, f"prompt {number}")
    update(daemon, house.poor)
    wait_until((house.directory / "told").exists, "the training")
    first = house.told()
    daemon.process.terminate()
    assert daemon.wait() == 0
    assert not alive(first["pid"])
    state = {"SPECD_STATE_DIR": str(daemon.config_file.parent / "state")}
    linger.unlink()
    config = (
        f"[model]\ntarget.path = {json.dumps(str(house.poor))}\ndraft.head = {json.dumps(str(house.first))}\n"
    )
    again = house.start(config, env=state, model=False)
    last = wait_until(lambda: shown(again)["healing"]["last"], "the end of the training")
    assert last["ok"], last["text"]
    assert (house.told()["out"], house.told()["starts"]) == (first["out"], 2)
