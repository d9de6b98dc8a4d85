"""Two daemons with real engines at one broker: an update of one of them is seen from everywhere, at once."""

import asyncio
import contextlib
import json
import time
from pathlib import Path

import httpx2

from specd.config.mqtt import MqttSection
from specd.fleet.listening import Document, Listening
from specd.mqtt.settings import read_settings
from tests.daemon.mosquitto import Mosquitto, needs_mosquitto
from tests.scenarios.stage import RealDaemon, Stage
from tests.tiny import make_noisy_dir

WITHIN = 5.0
"""Seconds from the answer to the update until it is seen."""


@needs_mosquitto
async def test_an_update_of_one_node_is_seen_within_seconds(
    stage: Stage, tiny_dir: Path, tmp_path: Path
) -> None:
    """Test that a listener at the broker, and the other node's own events, tell who has been updated and who has not,
    within five seconds after the update.
    """
    broker = Mosquitto(tmp_path)
    broker.start()
    noisy = make_noisy_dir(tiny_dir, tmp_path / "noisy", noise=0.1)
    with contextlib.closing(broker), contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(
                stage.daemon(mqtt={"url": broker.url, "node": name}, canary={"enabled": False})
            ).ready()
            for name in ("one", "two")
        )
        await asyncio.to_thread(update, first, noisy)
        answered = time.monotonic()
        listened, told = await asyncio.gather(
            Listening(read_settings(MqttSection(url=broker.url), "")).run(one_is_behind, 60),
            asyncio.to_thread(events_of, second),
        )
        assert time.monotonic() - answered < WITHIN
        for fleet in (listened, told):
            assert {node["node"]: node["taken"] for node in fleet["nodes"]} == {"one": True, "two": False}
            assert fleet["updates"][0]["revision"] == "next"


def update(daemon: RealDaemon, path: Path) -> None:
    body = {"path": str(path), "revision": "next"}
    answer = httpx2.post(daemon.admin + "/admin/v1/target", json=body, timeout=90)
    assert answer.status_code == 200, answer.text


def one_is_behind(fleet: Document) -> bool:
    return [node["taken"] for node in fleet["nodes"]] == [True, False]


def events_of(daemon: RealDaemon) -> Document:
    """What a daemon tells of the fleet, once it tells of the update."""
    url = f"{daemon.admin}/admin/v1/events?only=fleet"
    with httpx2.Client(timeout=60) as client, client.stream("GET", url) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: ") and one_is_behind(fleet := json.loads(line.removeprefix("data: "))):
                return fleet
    raise AssertionError("the events ended")
