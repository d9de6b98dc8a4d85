"""The bridge at a real mosquitto: what it says, how it comes back, and what it notices."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random

import pytest
from prometheus_client.core import CollectorRegistry

from specd.config.mqtt import MqttSection
from specd.mqtt.bridge import Bridge, Patience
from specd.mqtt.counts import Counts
from specd.mqtt.settings import read_settings
from specd.mqtt.state import Told
from tests.daemon.conftest import until
from tests.daemon.mosquitto import Mosquitto, Spy, needs_mosquitto, spying

pytestmark = needs_mosquitto

QUICK = Patience(first=0.05, longest=0.1, taken_over=1.0)

AVAILABILITY, STATE, TARGET, ALERTS = (
    f"specd/n1/{name}" for name in ("availability", "state", "target", "alerts")
)
RELOAD = "specd/n1/cmd/reload"


def told(**state: object) -> Told:
    """A daemon at rest, or what is said here of it."""
    target = {"target_revision": state.pop("target_revision", "t1"), "draft_revision": "d1"}
    return Told({"k": 2.0, "acceptance": {"chat": 0.6}, "load": "full", "time": 0.0, **state}, target)


class Rig:
    """A bridge, what it is told to tell, and its numbers."""

    def __init__(self, section: MqttSection, acts: dict | None = None) -> None:
        self.now = told()
        self.counts = Counts()
        self.registry = CollectorRegistry()
        self.registry.register(self.counts)
        self.bridge = Bridge(
            read_settings(section, "test"),
            look=lambda: self.now,
            acts=acts or {},
            counts=self.counts,
            patience=QUICK,
            rng=Random(1),
        )
        self.section = section

    def losses(self, reason: str) -> float:
        return self.registry.get_sample_value("specd_mqtt_connection_failures_total", {"reason": reason})

    @property
    def connected(self) -> bool:
        return self.bridge.status()["connected"]

    def configure(self, **changes: object) -> None:
        self.section = self.section.model_copy(update=changes)
        self.bridge.configure(read_settings(self.section, "test"))


@contextlib.asynccontextmanager
async def bridged(broker: Mosquitto, acts: dict | None = None, **section: object) -> AsyncIterator[Rig]:
    """A bridge that is connected."""
    rig = Rig(MqttSection(**{"url": broker.url, "node": "n1", "timeout_seconds": 2, **section}), acts)
    rig.bridge.start()
    try:
        await until(lambda: rig.connected)
        yield rig
    finally:
        await rig.bridge.aclose(1)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    broker = Mosquitto(tmp_path)
    broker.start()
    yield broker
    broker.stop()


def sessions(spy: Spy, topic: str = AVAILABILITY) -> list[str]:
    return [dict(one.properties.UserProperty)["session"] for one in spy.heard if str(one.topic) == topic]


async def test_who_comes_later_reads_what_is_retained(broker):
    """Test that availability, state and target wait for a subscriber, and that the goodbye is retained too."""
    async with bridged(broker), spying(broker) as spy:
        await spy.until(lambda spy: spy.at(STATE))
        assert spy.at(AVAILABILITY) == ["online"]
        assert spy.at(TARGET) == [{"target_revision": "t1", "draft_revision": "d1"}]
        assert spy.at(STATE) == [rig_state := told().state], rig_state
        assert all(message.retain and message.qos == 1 for message in spy.heard)
    async with spying(broker) as spy:
        await spy.until(lambda spy: spy.at(AVAILABILITY) == ["offline"])
