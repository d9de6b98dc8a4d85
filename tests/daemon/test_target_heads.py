"""What becomes of a head that nobody had to name, when the target is another one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from specd.models.cache import HashCache
from specd.models.identity import fingerprint
from tests.daemon.conftest import Daemons, write_served_model
from tests.daemon.daemon_process import DaemonProcess, wait_until
from tests.daemon.heads import HIDDEN, fit_for_heads, write_head
from tests.daemon.test_target_updates import NO_CANARY, other_model, rollback, shown, update


@pytest.fixture
def house(tmp_path: Path) -> Iterator[tuple[Daemons, dict[str, str], Path]]:
    """Whose daemons find a head that was trained for the target that they serve; the head."""
    daemons = Daemons(tmp_path)
    fit_for_heads(daemons.model)
    head = write_head(
        tmp_path / "state" / "heads" / "own", fingerprint(daemons.model, HashCache(tmp_path / "hashes.json"))
    )
    (head / "proof.json").write_text("{}")
    env = {"SPECD_STATE_DIR": str(tmp_path / "state"), "SPECD_CACHE_DIR": str(tmp_path / "cache")}
    yield daemons, env, head
    daemons.close()


def mismatches(daemon: DaemonProcess) -> list[dict]:
    alerts = daemon.get("/admin/v1/alerts").json()["alerts"]
    return [one for one in alerts if (one["name"], one["state"]) == ("SpecdDraftMismatch", "firing")]


def drafted_by(daemon: DaemonProcess) -> tuple[list[str], str | None]:
    current = shown(daemon)["current"]
    return current["proposers"], current["head"]


def test_a_head_that_is_lost_is_told(house, tmp_path):
    """Test that an update to a target of other sizes raises an alert that names the head and the pair, that the head
    drafts again after the rollback, which ends the alert, and that the update can be refused for it."""
    daemons, env, head = house
    daemon = daemons.start(f"[model.target.update]\nkeep_seconds = 0\n{NO_CANARY}", env=env).ready()
    assert drafted_by(daemon) == (["ngram", "eagle"], str(head))
    assert mismatches(daemon) == []
    wide = fit_for_heads(write_served_model(tmp_path / "wide"), 2 * HIDDEN)
    answer = update(daemon, wide).json()
    assert drafted_by(daemon) == (["ngram"], None)
    (alert,) = mismatches(daemon)
    assert f"the head in {head} drafted before and cannot" in alert["annotations"]["summary"]
    assert alert["labels"]["target_revision"] == answer["target_revision"]
    wait_until(lambda: not shown(daemon)["previous"]["kept"], "the end of the first engine")
    rollback(daemon)
    assert drafted_by(daemon) == (["ngram", "eagle"], str(head))
    assert mismatches(daemon) == []
    strict = daemons.start(f'[model.draft]\non_mismatch = "refuse"\n{NO_CANARY}', env=env).ready()
    refused = update(strict, wide)
    assert refused.status_code == 422
    assert "model.draft.on_mismatch = refuse" in refused.json()["error"]["message"]


def test_a_head_goes_on_after_a_restart(house, tmp_path):
    """Test that a daemon that is started with a target of the same sizes drafts with the head of before, and doubts it;
    and that one that is started with another size says that it has none, however often it is started."""
    daemons, env, head = house
    wide = fit_for_heads(write_served_model(tmp_path / "wide"), 2 * HIDDEN)
    tuned = fit_for_heads(other_model(tmp_path / "tuned"))
    told = "was trained for target", "drafted before and cannot", "drafted before and cannot"
    found = (["ngram", "eagle"], str(head)), (["ngram"], None), (["ngram"], None)
    first = daemons.start(NO_CANARY, env=env).ready()
    first.process.terminate()
    assert first.wait() == 0
    for daemons.model, drafts, words in zip((tuned, wide, wide), found, told, strict=True):
        daemon = daemons.start(NO_CANARY, env=env).ready()
        assert drafted_by(daemon) == drafts
        (alert,) = mismatches(daemon)
        assert words in alert["annotations"]["summary"]
        daemon.process.terminate()
        assert daemon.wait() == 0
