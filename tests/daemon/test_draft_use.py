"""Another head for the target that is served, by hand or by a reload: an engine beside the engine, as at an update."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from specd.cli import main
from tests.daemon.conftest import Daemons, write_served_model
from tests.daemon.daemon_process import DaemonProcess
from tests.daemon.heads import fit_for_heads, write_head
from tests.daemon.test_target_updates import NO_CANARY, ask, rollback, shown


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DaemonProcess, Path]]:
    directory = tmp_path_factory.mktemp("drafts")
    daemons = Daemons(directory)
    fit_for_heads(daemons.model)
    yield daemons.start(NO_CANARY).ready(), directory
    daemons.close()


def use(daemon: DaemonProcess, head: Path, **more: str) -> httpx2.Response:
    return httpx2.post(daemon.admin + "/admin/v1/draft", json={"head": str(head), **more}, timeout=30)


def drafts(daemon: DaemonProcess) -> tuple[list[str], str | None]:
    current = shown(daemon)["current"]
    return current["proposers"], current["head"]


def test_a_head_is_swapped_under_requests(house):
    """Test that another engine drafts with the head, that reports, status and metrics name it, that a rollback drafts
    without it again, and that the alarm knows of it as a possible cause."""
    daemon, directory = house
    before = daemon.status()
    answer = use(daemon, write_head(directory / "one")).json()
    assert answer["text"].endswith(f"is drafted for with the head in {directory / 'one'} now")
    assert answer["target_revision"] == before["model"]["target_revision"]
    assert answer["draft_revision"].startswith("ngram-2-5+eagle-")
    assert drafts(daemon) == (["ngram", "eagle"], str(directory / "one"))
    assert daemon.status()["engine"]["pid"] != before["engine"]["pid"]
    assert ask(daemon).json()["specd"]["draft_revision"] == answer["draft_revision"]
    assert f'draft_revision="{answer["draft_revision"]}"' in daemon.get("/metrics").text
    assert rollback(daemon).json()["draft_revision"] == "ngram-2-5"
    assert drafts(daemon) == (["ngram"], None)


def test_the_command(house, capsys):
    """Test that `specd draft use` swaps, names what it swaps in, and that a refusal exits 2."""
    daemon, directory = house
    admin = ["--admin", daemon.admin.removeprefix("http://")]
    assert main(["draft", "use", str(write_head(directory / "two")), "--revision", "two", *admin]) == 0
    assert ", draft two, after" in capsys.readouterr().out
    assert main(["draft", "use", str(directory / "two"), "--revision", "two", *admin]) == 0
    assert "is what is served already" in capsys.readouterr().out
    assert main(["draft", "use", "nowhere", *admin]) == 2
    assert "nowhere: there is no such directory" in capsys.readouterr().err
    rollback(daemon)


def test_a_reload_swaps_the_head(house):
    """Test that model.draft.head is taken over by a reload without a restart, and taken back by the next one."""
    daemon, directory = house
    admin = ["--admin", daemon.admin.removeprefix("http://")]
    before, config = daemon.status()["engine"]["pid"], daemon.config_file.read_text()
    head = write_head(directory / "three")
    daemon.config_file.write_text(f"{config}\n[model.draft]\nhead = {json.dumps(str(head))}\n")
    assert main(["reload", "--wait", *admin]) == 0
    assert drafts(daemon) == (["ngram", "eagle"], str(head))
    assert daemon.status()["engine"]["pid"] != before
    daemon.config_file.write_text(config)
    assert main(["reload", "--wait", *admin]) == 0
    assert drafts(daemon) == (["ngram"], None)


def half_written(directory: Path) -> Path:
    head = write_head(directory)
    weights = head / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-2])
    return head


BAD = {
    "of another size": (lambda at: write_head(at, hidden=16), "reads hidden states of 16"),
    "half-written": (half_written, "half-written, "),
    "vanished": (lambda at: at, "there is no such directory"),
    "a whole model": (write_served_model, "holds a whole model"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_head_leaves_the_drafts_as_they_are(case, house, tmp_path):
    """Test that a head that cannot draft here is refused with the reason, and no engine is started for it."""
    daemon, _ = house
    make, sentence = BAD[case]
    before = daemon.status()["engine"]["pid"], drafts(daemon)
    answer = use(daemon, make(tmp_path / "bad"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "target_refused")
    assert sentence in answer.json()["error"]["message"]
    assert (daemon.status()["engine"]["pid"], drafts(daemon)) == before


def test_a_config_without_heads_takes_none(daemons, tmp_path):
    """Test that a head is refused where the config lists who drafts, and nobody in the list has one."""
    fit_for_heads(daemons.model)
    daemon = daemons.start('[model.draft]\nkind = ["ngram", "suffix"]\n' + NO_CANARY).ready()
    answer = use(daemon, write_head(tmp_path / "head"))
    assert answer.status_code == 422
    assert 'has nobody who drafts with a head of kind eagle: put "eagle" into it' in answer.text.replace(
        '\\"', '"'
    )
    assert httpx2.post(daemon.admin + "/admin/v1/draft", json={"head": ""}).status_code == 400
