"""How the daemon comes to a broker: the bridge, with what it tells and what may be asked of it."""

import time
from collections.abc import Sequence
from typing import Any, Protocol

from specd.config.layers import Loaded, Sources
from specd.config.schema import Config
from specd.mqtt.acts import Asked, acts_of
from specd.mqtt.bridge import Bridge
from specd.mqtt.counts import Counts
from specd.mqtt.settings import Settings, read_settings
from specd.mqtt.state import Told, told_of
from specd.telemetry.prometheus import Metrics


class Shown(Asked, Protocol):
    """What is told, and what can be asked for."""

    def status(self) -> dict[str, Any]:
        """How everything stands."""

    def alerts(self) -> Sequence[dict[str, Any]]:
        """Open alerts and those that ended lately."""

    def target(self) -> dict[str, Any]:
        """What serves, what is done about it, and how the last change went."""


def settings_of(config: Config, sources: Sources) -> Settings | None:
    """Of this daemon: what it was started with tells it from others on the host. Raises `UserError`."""
    return read_settings(config.mqtt, f"{sources.main}\n{config.admin.listen}")


def presence(loaded: Loaded, shown: Shown, metrics: Metrics) -> Bridge:
    """A bridge that is yet to be started. Raises `UserError` when a file that the config names cannot be used."""

    def look() -> Told:
        return told_of(shown.status(), shown.alerts(), shown.target(), time.time())

    counts = Counts()
    bridge = Bridge(settings_of(loaded.config, loaded.sources), look=look, acts=acts_of(shown), counts=counts)
    metrics.include(counts)
    return bridge
