"""A draft that is ruined in a running daemon: the detectors see it in the requests, and their reports show it again."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.daemon_process import DEADLINE, SPECD
from tests.scenarios.crowd import Crowd, seen
from tests.scenarios.stage import RealDaemon, Stage

BODY = {
    "prompt": "the daemon drafts",
    "max_tokens": 40,
    "temperature": 0.0,
    "ignore_eos": True,
    "specd": {"class": "chat"},
}
DRIFT = {"learn_requests": 20, "requests_per_false_alarm": 1000.0}
NEARLY_ALL = [0, 1, 2]  # of 4 layers


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    return tmp_path / "reports.jsonl"


@pytest.fixture
def daemon(stage: Stage, reports: Path) -> Iterator[RealDaemon]:
    """Drafts with the whole of the target at first, under a name that does not tell its layers."""
    with stage.daemon(
        model={"draft": {"kind": "layer-skip", "skip_layers": [], "revision": "d1"}},
        policy={"kind": "static", "static_k": 2, "k_max": 2},
        drift=DRIFT,
        alerts={"rules": []},
        telemetry={"reports_file": str(reports)},
    ) as daemon:
        yield daemon.ready()


async def test_a_draft_that_goes_bad_is_found_in_the_requests(daemon: RealDaemon, reports: Path) -> None:
    """Test that the alert names class, pair, numbers and the reload that did it; that metrics tell baseline and score;
    and that `specd replay` says the same of the reports."""
    async with Crowd(daemon.url, **BODY) as crowd:
        await crowd.resize(2)
        await seen(
            lambda: daemon.metrics().get('specd_acceptance_baseline{class="chat"}') == 1.0, "a baseline"
        )
        daemon.write(model={"draft": {"skip_layers": NEARLY_ALL}})
        assert daemon.reload().returncode == 0
        await seen(lambda: open_alerts(daemon), "the alert")
        assert daemon.metrics()['specd_drift_score{class="chat"}'] > 0
    (alert,) = open_alerts(daemon)
    named = {
        "alertname": "SpecdAcceptanceDrift",
        "class": "chat",
        "proposer": "layer-skip",
        "draft_revision": "d1",
    }
    assert named.items() <= alert["labels"].items()
    assert alert["annotations"]["suspected_cause"].startswith("config reload at ")
    assert "from 1.00 to 0." in alert["annotations"]["summary"]
    (stratum,) = daemon.status()["drift"]
    assert (stratum["proposer"], stratum["wrong"]) == ("layer-skip", [alert["labels"]["kind"]])
    await seen(
        lambda: alert["labels"] in [one["labels"] for one in replayed(reports)], "the same of the reports"
    )


def open_alerts(daemon: RealDaemon) -> list[dict]:
    return [alert for alert in daemon.get("/admin/v1/alerts").json()["alerts"] if alert["endsAt"] is None]


def replayed(reports: Path) -> list[dict]:
    options = [f"--set=drift.{name}={value}" for name, value in DRIFT.items()]
    done = subprocess.run(
        [SPECD, "replay", str(reports), "--now-from-record", *options, "--set=alerts.rules=[]"],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
