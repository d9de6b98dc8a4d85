"""Reloads of a running daemon: each key there is, one after the other, in part, by the watch, and again and again."""

import asyncio
import itertools
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import tomli_w

from specd.config.layers import merge
from specd.config.paths import reload_kind
from specd.config.section import Reload
from tests.daemon.conftest import Daemons
from tests.daemon.daemon_process import DaemonProcess, wait_until
from tests.daemon.other_values import changes
from tests.scenarios.crowd import Crowd, seen

Table = dict[str, Any]

NEEDS_MORE = {
    "model.draft.skip_file": "a file made for the target: test_skip_file.py",
    "mqtt.ca_file": "certificates: test_mqtt_bridge.py",
    "mqtt.cert_file": "certificates: test_mqtt_bridge.py",
    "mqtt.key_file": "certificates: test_mqtt_bridge.py",
    "reload.watch": "off here already, so that nothing is read before it is asked for",
}
PENDING = "specd_config_pending_restart"


class Config:
    """The config file of a daemon, and the config in force."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self._daemon = daemon
        self._first = tomllib.loads(daemon.config_file.read_text())

    def write(self, *sections: Table) -> None:
        """As it was at first, but for these."""
        self._daemon.config_file.write_text(tomli_w.dumps(merge([self._first, *sections])))

    def reload(self, **how: bool) -> httpx2.Response:
        return httpx2.post(self._daemon.admin + "/admin/v1/reload", json=how)

    def in_force(self) -> Table:
        return self._daemon.get("/admin/v1/config").json()["config"]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory) -> Iterator[DaemonProcess]:
    daemons = Daemons(tmp_path_factory.mktemp("served"))
    yield daemons.start("[canary]\n").ready()
    daemons.close()


def test_every_key_is_taken_over_or_refused_by_name(daemon: DaemonProcess, tmp_path: Path) -> None:
    """Test that a running daemon takes over another value of each hot key, as the only change, and refuses another
    value of each restart key, by its name, and that with all of them back nothing has changed.
    """
    config = Config(daemon)
    at_first = config.in_force()
    for key, (before, after, told) in changes(tmp_path).items():
        kind = reload_kind(key.split("."))
        if key in NEEDS_MORE or kind is Reload.DRAIN:
            continue
        config.write(before)
        assert config.reload().status_code == 200, key
        config.write(after)
        answer = config.reload()
        if kind is Reload.HOT:
            assert [change["key"] for change in answer.json()["changes"]] == [told]
        else:
            assert answer.status_code == 409
            assert answer.json()["error"]["message"].startswith(f"nothing was changed: {told} can only")
    config.write()
    assert config.reload().status_code == 200
    assert config.in_force() == at_first
    assert "Traceback" not in daemon.log


def test_a_partial_reload_leaves_restart_keys_pending(daemon: DaemonProcess) -> None:
    """Test that hot keys are taken over beside restart keys that wait, that answer, status and metric tell which, that
    a full reload is still refused, and that nothing waits once the file is as it was.
    """
    config = Config(daemon)
    config.write({"policy": {"k_max": 3}, "engine": {"max_running": 7, "threads": 2}})
    assert config.reload().status_code == 409
    assert daemon.metric(PENDING) == 0
    answer = config.reload(partial=True).json()
    assert [change["key"] for change in answer["changes"]] == ["policy.k_max"]
    waiting = ["engine.threads", "engine.max_running"]
    assert [change["key"] for change in answer["pending"]] == waiting
    assert daemon.status()["config"]["pending_restart"] == waiting
    assert daemon.metric(PENDING) == 2
    assert (config.in_force()["engine"]["max_running"], config.in_force()["policy"]["k_max"]) == (48, 3)
    assert config.reload().status_code == 409
    config.write()
    assert [change["key"] for change in config.reload().json()["changes"]] == ["policy.k_max"]
    assert (daemon.metric(PENDING), daemon.status()["config"]["pending_restart"]) == (0, [])


def test_drafts_that_memory_does_not_hold_are_refused(daemons: Daemons) -> None:
    """Test that rows beyond those that were planned for are taken over as far as there was memory beside them, refused
    with what to set beyond, and that what adds no rows passes.
    """
    planned = 48 * (1 + 8)
    daemons.engine.behave(room={"rows": planned, "row_bytes": 1 << 20, "spare_bytes": 50 << 20})
    daemon = daemons.start().ready()
    config = Config(daemon)
    for policy, status in (({"k_max": 9}, 200), ({"tree_nodes": 63}, 200), ({"k_max": 10}, 422), ({}, 200)):
        config.write({"policy": policy})
        assert config.reload().status_code == status, policy
    set_live = httpx2.patch(daemon.admin + "/admin/v1/config", json={"policy.k_max": 10})
    assert set_live.status_code == 422
    said = set_live.json()["error"]["message"]
    assert said.startswith("with policy.k_max = 10 and policy.tree_nodes = 16 a step may verify 528 rows")
    assert "432: 46 MiB more than were free at its start" in said
    assert config.in_force()["policy"]["k_max"] == 8
    assert daemon.status()["engine"]["info"]["room"]["rows"] == planned


def test_an_edited_file_needs_no_command(daemons: Daemons) -> None:
    """Test that a daemon notices a change by itself, refuses a bad one once, and says by whom it was reloaded."""
    daemon = daemons.start(watch=True).ready()
    good = daemon.config_file.read_text()
    daemon.config_file.write_text(good + "[policy]\nk_mx = 3\n")
    wait_until(lambda: daemon.metric("specd_config_last_reload_successful") == 0, "the refusal")
    daemon.config_file.write_text(good + "[policy]\nk_max = 3\n")
    wait_until(lambda: daemon.metric("specd_config_last_reload_successful") == 1, "the reload")
    assert daemon.status()["config"]["last_reload"]["trigger"] == "watch"
    assert daemon.get("/admin/v1/config").json()["config"]["policy"]["k_max"] == 3
    assert daemon.log.count("reload by watch refused, the running config stays") == 1


STORM: list[tuple[Table, int]] = [
    ({"policy": {"k_max": 4}}, 200),
    ({"policy": {"k_max": 99}}, 422),
    ({}, 200),
    ({"policy": {"k_max": 5}, "engine": {"max_running": 9}}, 409),
    ({"policy": {"k_max": 6}, "alerts": {"rules": []}}, 200),
]


async def test_a_storm_of_reloads_drops_no_request(daemon: DaemonProcess) -> None:
    """Test that with a reload every tenth of a second, good and bad ones in turn, each request is answered in full and
    with the same text, by the same engine, and that in the end exactly what the last good one says has changed.
    """
    config, engine = Config(daemon), daemon.status()["engine"]
    at_first = config.in_force()
    body = {"prompt": "the storm", "max_tokens": 60}
    async with Crowd(daemon.url, **body) as crowd:
        await crowd.resize(6)
        for sections, status in itertools.chain(*[STORM] * 5):
            config.write(sections)
            tick = asyncio.create_task(asyncio.sleep(0.1))
            assert (await asyncio.to_thread(config.reload)).status_code == status
            await tick
        await seen(lambda: crowd.served(6), "requests served during and after")
    assert len(crowd.texts) == 1
    assert daemon.status()["engine"] == engine
    at_last = config.in_force()
    assert at_last == merge([at_first, {"policy": {"k_max": 6}, "alerts": {"rules": []}}])
    config.write()
    assert config.reload().status_code == 200
