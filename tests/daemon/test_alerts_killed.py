"""Alerts while the daemon is killed and its receivers fail."""

import pytest

from benchmarks.delivery import Asked, page, run
from tests.daemon.conftest import write_served_model
from tests.daemon.mosquitto import PROGRAM


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECD_CACHE_DIR", str(tmp_path / "cache"))
    return str(write_served_model(tmp_path / "tiny"))


async def test_no_alert_is_lost_or_overtaken_when_the_daemon_is_killed(tmp_path, model):
    """Test that webhooks that fail one time in five, and a broker that is restarted where there is one, hear of every
    alert and then of its end, though the daemon is killed with SIGKILL again and again."""
    asked = Asked(alerts=24, kills=3, restarts=1 if PROGRAM else 0, seed=1)
    found = await run(asked, tmp_path, model)
    assert found["all_arrived_seconds"] is not None
    assert found["kills"] == 3
    for told in found["told"]:
        assert (told["alerts"], told["lost"], told["disordered"]) == (24, 0, 0)
        assert told["notices"] >= 48
    assert any("| alone " in line for line in page(found))
