"""A daemon without an engine of its own, beside one that it observes: processes, sockets and commands."""

import json
import signal
from pathlib import Path

import pytest

from specd.cli import main
from tests.daemon.conftest import Daemons
from tests.daemon.daemon_process import DaemonProcess, wait_until
from tests.daemon.observed_engine import ObservedEngine


def config(server: ObservedEngine, prompts: Path) -> str:
    prompts.write_text("".join(f'{{"prompt": "question {n}"}}\n' for n in range(16)))
    return f"""
[canary]
prompts = "{prompts}"

[engine]
backend = "none"

[[observe]]
name = "peer"
url = "{server.url}"
every_seconds = 0.1
canary_seconds = 0.5
"""


def observed(daemon: DaemonProcess) -> dict:
    (one,) = daemon.get("/admin/v1/observed").json()["observed"]
    return one


def known(daemon: DaemonProcess) -> None:
    wait_until(lambda: observed(daemon)["looks"]["canary"] >= 2, "two canaries")


def firing(daemon: DaemonProcess) -> set[str]:
    alerts = daemon.get("/admin/v1/alerts").json()["alerts"]
    return {alert["name"] for alert in alerts if alert["state"] == "firing"}


def test_a_daemon_that_only_observes(daemons: Daemons, tmp_path, capsys) -> None:
    """Test that it starts without a model, says to whoever asks for one why there is none, notices a swap, takes a
    reload, and ends.
    """
    with ObservedEngine().running() as server:
        daemon = daemons.start(config(server, tmp_path / "prompts.jsonl"), model=False)
        wait_until(lambda: "no engine here; observed: peer" in daemon.said, "the start")
        refused = daemon.post("/v1/completions", {"prompt": "a"})
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "no_engine"
        assert "only observes" in daemon.get("/ready").text
        update = daemon._http.post(f"{daemon.admin}/admin/v1/target", json={"path": "demo"})
        assert (update.status_code, "only observes" in update.text) == (422, True)
        assert daemon.get("/admin/v1/target").status_code == 200
        known(daemon)
        assert daemon.metric('specd_observe_target_changed{engine="peer"}') == 0

        server.restart(target="two")
        wait_until(lambda: "SpecdTargetChanged" in firing(daemon), "the alert")
        where = ["--admin", daemon.admin.removeprefix("http://")]
        assert main(["observe", "list", *where]) == 0
        assert "peer: another target answers" in capsys.readouterr().out
        assert main(["status", *where]) == 0
        assert "peer: another target answers" in capsys.readouterr().out
        assert main(["observe", "accept", "peer", *where]) == 0
        assert "accepted: demo-" in capsys.readouterr().out
        assert main(["observe", "accept", "peer", *where]) == 2
        assert "nothing to accept" in capsys.readouterr().err
        assert main(["observe", "canary", "nobody", *where]) == 2
        wait_until(lambda: "SpecdTargetChanged" not in firing(daemon), "its end")

        daemon.config_file.write_text(daemon.config_file.read_text().replace('"peer"', '"other"'))
        assert main(["reload", "--wait", *where]) == 0
        assert observed(daemon)["name"] == "other"
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0


def test_the_config_is_checked_without_a_model(tmp_path, capsys) -> None:
    file = tmp_path / "specd.toml"
    file.write_text(
        '[engine]\nbackend = "none"\n[model.target]\npath = "/nowhere"\n'
        '[[observe]]\nname = "a"\nurl = "http://127.0.0.1:9"\n'
    )
    assert main(["check", "-c", str(file)]) == 0
    assert "ok: no engine here, 1 observed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([{"name": "a", "url": "http://h"}, {"name": "a", "url": "http://i"}], "different names"),
        ([{"name": "a b", "url": "http://h"}], "observe[0].name"),
        ([{"name": "a", "url": "ftp://h"}], "observe[0].url"),
        ([{"name": "a", "url": "http://h?x=1"}], "leave ? and #"),
        ([{"url": "http://h"}], "observe[0].name"),
        ([{"name": "a", "url": "http://h", "metric_url": "http://h"}], "did you mean"),
    ],
)
def test_faults_of_the_config_are_told(tmp_path, capsys, entries, said) -> None:
    lines = ["[engine]", 'backend = "none"']
    for entry in entries:
        lines += ["[[observe]]", *(f"{key} = {json.dumps(value)}" for key, value in entry.items())]
    file = tmp_path / "specd.toml"
    file.write_text("\n".join(lines))
    assert main(["check", "-c", str(file)]) == 2
    assert said in capsys.readouterr().err
