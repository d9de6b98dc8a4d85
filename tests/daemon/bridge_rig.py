"""A bridge in the test's own process."""

import contextlib
from collections.abc import AsyncIterator
from random import Random

from prometheus_client.core import CollectorRegistry

from specd.config.mqtt import MqttSection
from specd.mqtt.bridge import Bridge, Patience
from specd.mqtt.counts import Counts
from specd.mqtt.settings import read_settings
from specd.mqtt.state import Told
from tests.daemon.conftest import until
from tests.daemon.mosquitto import Mosquitto

QUICK = Patience(first=0.05, longest=0.1)


def told(**state: object) -> Told:
    """A daemon at rest, or what is said here of it."""
    target = {"target_revision": state.pop("target_revision", "t1"), "draft_revision": "d1"}
    return Told({"k": 2.0, "acceptance": {"chat": 0.6}, "load": "full", "time": 0.0, **state}, target)


class Rig:
    """A bridge, what it is told to tell, and its numbers."""

    def __init__(self, section: MqttSection, acts: dict | None = None) -> None:
        self.now = told()
        self.looks = 0
        self.counts = Counts()
        self.registry = CollectorRegistry()
        self.registry.register(self.counts)
        self.section = section
        self._acts = acts or {}
        self.bridge = self.make(QUICK)

    def _look(self) -> Told:
        self.looks += 1
        return self.now

    def make(self, patience: Patience, instance: str = "test") -> Bridge:
        return Bridge(
            read_settings(self.section, instance),
            look=self._look,
            acts=self._acts,
            counts=self.counts,
            patience=patience,
            rng=Random(1),
        )

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
    rig = Rig(MqttSection(**{"url": broker.url, "node": "n1", **section}), acts)
    rig.bridge.start()
    try:
        await until(lambda: rig.connected)
        yield rig
    finally:
        await rig.bridge.aclose(1)
