"""What `/metrics` says of the broker."""

from collections import Counter
from collections.abc import Iterator
from typing import Final, get_args

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from specd.config.mqtt import Verb
from specd.mqtt.commands import Outcome
from specd.mqtt.link import Loss
from specd.telemetry.families import counter, gauge

_OTHER: Final = "other"


class Counts(Collector):
    """Fed by the bridge, read at the scrape."""

    def __init__(self) -> None:
        self.connected: bool | None = None
        """None while there is no broker to be connected to."""
        self.denied = 0
        self._losses: Counter[str] = Counter(dict.fromkeys(get_args(Loss), 0))
        self._commands: Counter[tuple[str, str]] = Counter(
            {(verb, outcome): 0 for verb in (*get_args(Verb), _OTHER) for outcome in get_args(Outcome)}
        )

    def lost(self, reason: Loss) -> None:
        """A connection ended, or an attempt at one failed."""
        self._losses[reason] += 1

    def answered(self, verb: str, outcome: Outcome) -> None:
        """A command came to its end. Names that are no command's are counted together."""
        self._commands[verb if verb in get_args(Verb) else _OTHER, outcome] += 1

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        connected = float("nan") if self.connected is None else self.connected
        yield gauge("specd_mqtt_connected", "1 while the broker is connected; NaN without one.", connected)
        yield gauge(
            "specd_mqtt_denied_topics",
            "Own topics whose last message did not come back: the access list forbids them.",
            self.denied,
        )
        yield counter(
            "specd_mqtt_connection_failures_total",
            "Connections lost and attempts that failed, by why.",
            ("reason",),
            [((reason,), count) for reason, count in self._losses.items()],
        )
        yield counter(
            "specd_mqtt_commands_total",
            "Commands by outcome.",
            ("command", "outcome"),
            self._commands.items(),
        )
