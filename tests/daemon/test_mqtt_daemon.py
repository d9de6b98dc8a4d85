"""The daemon at a real mosquitto: what it tells, which commands it obeys, and what a reload changes of it."""

import contextlib
import json
import signal

import httpx2
import pytest

from tests.daemon.daemon_process import wait_until
from tests.daemon.mosquitto import Mosquitto, needs_mosquitto, spying

pytestmark = needs_mosquitto


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    broker = Mosquitto(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker
    broker.close()


async def test_the_life_of_a_daemon_is_seen_at_the_broker(daemons, broker):
    """Test that state and target follow the daemon from loading to its end, and that both name what it serves."""
    with_broker = f'[mqtt]\nurl = "{broker.url}"\nnode = "life"\n'
    async with spying(broker) as spy:
        daemon = daemons.start(with_broker).ready()
        await spy.until(lambda spy: any(state["ready"] for state in spy.at("specd/life/state")))
        model = daemon.status()["model"]
        target = spy.at("specd/life/target")[-1]
        assert (target["target_revision"], target["name"]) == (model["target_revision"], "tiny")
        assert daemon.status()["mqtt"]["connected"] is True
        assert daemon.metric("specd_mqtt_connected") == 1
        assert daemon.post("/v1/completions", {"prompt": "secret", "max_tokens": 8}).status_code == 200
        await spy.until(lambda spy: spy.at("specd/life/state")[-1]["acceptance"])
        daemon.signal(signal.SIGTERM)
        await spy.until(lambda spy: spy.at("specd/life/availability")[-1] == "offline")
        assert daemon.wait() == 0
        assert not any(b"secret" in bytes(message.payload) for message in spy.heard)


async def test_a_daemon_that_is_killed_is_offline(daemons, broker):
    """Test that the broker publishes the last will of a daemon that cannot say goodbye, with the birth's session."""
    async with spying(broker) as spy:
        daemon = daemons.start(f'[mqtt]\nurl = "{broker.url}"\nnode = "killed"\n')
        topic = "specd/killed/availability"
        await spy.until(lambda spy: spy.at(topic) == ["online"])
        daemon.signal(signal.SIGKILL)
        await spy.until(lambda spy: spy.at(topic) == ["online", "offline"])
        born, died = (dict(m.properties.UserProperty) for m in spy.heard if str(m.topic) == topic)
        assert born["session"] == died["session"]


async def test_a_reload_by_command_is_that_of_the_admin_listener(daemons, broker):
    """Test that a command of the fleet reloads, is answered with the changes, and a faulty file is answered as one."""
    daemon = daemons.start(f'[mqtt]\nurl = "{broker.url}"\nnode = "obeys"\ncommands = ["reload"]\n').ready()
    wait_until(lambda: daemon.status()["mqtt"]["connected"])
    config = daemon.config_file.read_text()
    async with spying(broker) as spy:
        daemon.config_file.write_text(config + "[policy]\nk_max = 3\n")
        answer = await spy.ask("specd/all/cmd/reload")
        assert (answer["node"], answer["command"], answer["ok"]) == ("obeys", "reload", True)
        assert [(change["key"], change["new"]) for change in answer["changes"]] == [("policy.k_max", 3)]
        daemon.config_file.write_text(config + "[policy]\nk_max = 'three'\n")
        refused = await spy.ask("specd/obeys/cmd/reload")
        assert refused["ok"] is False
        assert "policy.k_max: must be a whole number, not this text" in refused["error"]
    status = daemon.status()["config"]["last_reload"]
    assert (status["trigger"], status["result"]) == ("mqtt", "refused")
    assert daemon.metric('specd_mqtt_commands_total{command="reload",outcome="done"}') == 1
    assert daemon.metric('specd_mqtt_commands_total{command="reload",outcome="refused"}') == 1


async def test_an_alert_waits_for_a_frozen_broker(daemons, tmp_path):
    """Test that an alert that fires while the broker is stopped is told once it goes on, to the topic that a broker
    in the config brings along; that a repetition has the same id; and that it is the one that the admin listener shows.
    """
    broker = Mosquitto(tmp_path)
    broker.start()
    rule = "[[alerts.rules]]\nbelow = 1.0\nfor_seconds = 0\nmin_examined = 1\n"
    mqtt = f'[mqtt]\nurl = "{broker.url}"\nnode = "alarm"\ntimeout_seconds = 1\n'
    with contextlib.closing(broker):
        daemon = daemons.start(mqtt + rule).ready()
        wait_until(lambda: daemon.status()["mqtt"]["connected"])
        async with spying(broker) as spy:
            broker.signal(signal.SIGSTOP)
            body = {"prompt": "ab", "max_tokens": 8, "specd": {"k": 1, "class": "chat"}}
            assert daemon.post("/v1/completions", body).status_code == 200
            wait_until(lambda: daemon.status()["alerts"]["firing"])
            wait_until(lambda: daemon.metric('specd_receiver_failing{receiver="mqtt"}') == 1)
            broker.signal(signal.SIGCONT)
            await spy.until(lambda spy: spy.at("specd/alarm/alerts"))
            wait_until(lambda: daemon.metric('specd_receiver_outbox{receiver="mqtt"}') == 0)
            told = [one for one in spy.at("specd/alarm/alerts") if one["labels"]["class"] == "chat"]
            assert len({one["id"] for one in told}) == 1
            shown = daemon.get("/admin/v1/alerts").json()["alerts"][0]
            assert (told[0]["fingerprint"], told[0]["status"]) == (shown["fingerprint"], "firing")
            assert daemon.metric('specd_webhook_deliveries_total{outcome="delivered",receiver="mqtt"}') == 1
            await spy.until(lambda spy: spy.at("specd/alarm/state")[-1]["firing"])


async def test_a_key_is_set_by_command(daemons, broker):
    """Test that `set` changes a hot key of the running daemon, and that a key that needs a restart is refused."""
    daemon = daemons.start(f'[mqtt]\nurl = "{broker.url}"\nnode = "sets"\ncommands = ["set"]\n').ready()
    wait_until(lambda: daemon.status()["mqtt"]["connected"])
    async with spying(broker) as spy:
        answer = await spy.ask("specd/sets/cmd/set", {"policy.k_max": 3})
        assert (answer["ok"], answer["changes"][0]["new"]) == (True, 3)
        refused = await spy.ask("specd/sets/cmd/set", {"engine.threads": 1})
        assert "engine.threads can only change with a restart" in refused["error"]
    assert daemon.get("/admin/v1/config").json()["set"] == ["policy.k_max"]


async def test_alerts_are_silenced_by_command(daemons, broker):
    """Test that a silence comes into force as one of the admin listener does, and one without matchers is refused."""
    daemon = daemons.start(f'[mqtt]\nurl = "{broker.url}"\nnode = "quiet"\ncommands = ["silence"]\n').ready()
    wait_until(lambda: daemon.status()["mqtt"]["connected"])
    async with spying(broker) as spy:
        answer = await spy.ask("specd/quiet/cmd/silence", {"matchers": ["class=chat"], "for": "2h"})
        refused = await spy.ask("specd/quiet/cmd/silence", {"matchers": [], "for": "2h"})
    assert (answer["ok"], refused["ok"]) == (True, False)
    (silence,) = daemon.get("/admin/v1/silences").json()["silences"]
    assert (silence["id"], silence["matchers"]) == (answer["id"], answer["matchers"])


async def test_a_reload_moves_the_daemon_to_another_name(daemons, broker):
    """Test that [mqtt] is hot: the old name is offline, the new one online, and the asker gets its answer."""
    daemon = daemons.start(f'[mqtt]\nurl = "{broker.url}"\nnode = "old"\ncommands = ["reload"]\n').ready()
    wait_until(lambda: daemon.status()["mqtt"]["connected"])
    async with spying(broker) as spy:
        daemon.config_file.write_text(daemon.config_file.read_text().replace('"old"', '"new"'))
        answer = await spy.ask("specd/old/cmd/reload")
        assert answer["ok"] is True
        await spy.until(lambda spy: spy.at("specd/old/availability")[-1] == "offline")
        await spy.until(lambda spy: spy.at("specd/new/availability") == ["online"])
        daemon.config_file.write_text(daemon.config_file.read_text().replace(broker.url, ""))
        daemon.signal(signal.SIGHUP)
        await spy.until(lambda spy: spy.at("specd/new/availability")[-1] == "offline")
    wait_until(lambda: daemon.status()["mqtt"]["broker"] is None)


def test_the_receiver_that_a_broker_brings_along_outlives_a_reload_that_is_refused(daemons, broker, tmp_path):
    """Test that alerts still go to the broker after a reload to a target that there is not."""
    daemon = daemons.start(f'[mqtt]\nurl = "{broker.url}"\nnode = "refuses"\n').ready()
    before = daemon.get("/admin/v1/alerts").json()["receivers"]
    assert [receiver["name"] for receiver in before] == ["mqtt"]
    config = daemon.config_file.read_text()
    gone = config.replace(json.dumps(str(daemons.model)), json.dumps(str(tmp_path / "gone")))
    daemon.config_file.write_text(gone)
    assert httpx2.post(f"{daemon.admin}/admin/v1/reload", timeout=20).status_code == 422
    assert daemon.get("/admin/v1/alerts").json()["receivers"] == before


def test_a_password_that_cannot_be_read_is_the_users_mistake(daemons, tmp_path):
    """Test that the daemon does not start without a secret that the config names, and says which key is at fault."""
    gone = json.dumps(str(tmp_path / "gone"))
    daemon = daemons.start(f'[mqtt]\nurl = "mqtt://localhost"\nuser = "u"\npassword_file = {gone}\n')
    assert daemon.wait() == 2
    assert "mqtt.password_file" in daemon.log
