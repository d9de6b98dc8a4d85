"""What the alarm tells Prometheus: alerts, and how their delivery goes."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, get_args

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from specd.telemetry.families import counter, gauge, gauges

DeliveryOutcome = Literal["delivered", "retried", "rejected", "gave_up", "dropped"]

_NEVER: Final = float("nan")


class AlarmMetrics(Collector):
    """Set and counted by the alarm, summed up at the scrape."""

    def __init__(self) -> None:
        self._alerts: dict[tuple[str, str], int] = {}
        self._silences = 0
        self._durable = True
        self._deliveries: Counter[tuple[str, str]] = Counter()
        self._pending: dict[str, int] = {}
        self._failing: dict[str, bool] = {}
        self._succeeded: dict[str, float] = {}

    def set_alerts(self, counts: Mapping[tuple[str, str], int], silences: int = 0) -> None:
        """Alerts by (name, state), and silences in force; replaces what was set before."""
        self._alerts = dict(counts)
        self._silences = silences

    def declare_receivers(self, names: Iterable[str]) -> None:
        """Start the series of these receivers, and end the gauges of others; counts of earlier ones stay."""
        self._failing = {name: self._failing.get(name, False) for name in names}
        self._succeeded = {name: self._succeeded.get(name, _NEVER) for name in self._failing}
        self._pending = {name: self._pending.get(name, 0) for name in self._failing}
        for name in self._failing:
            for outcome in get_args(DeliveryOutcome):
                self._deliveries[name, outcome] += 0

    def outcome(self, receiver: str, outcome: DeliveryOutcome, unix_time: float, messages: int = 1) -> None:
        """An attempt or delivery ended as delivered, retried, rejected, gave_up or dropped."""
        self._deliveries[receiver, outcome] += messages
        if receiver in self._failing and outcome != "dropped":
            self._failing[receiver] = outcome != "delivered"
            if outcome == "delivered":
                self._succeeded[receiver] = unix_time

    def set_outbox(self, pending: Mapping[str, int], *, durable: bool) -> None:
        """Messages that wait, by receiver, and whether they are on a disk."""
        self._pending = {name: pending.get(name, 0) for name in self._failing}
        self._durable = durable

    def failing(self, receiver: str) -> bool:
        """Whether its last attempt failed."""
        return self._failing.get(receiver, False)

    def pending(self, receiver: str) -> int:
        """Its messages that wait."""
        return self._pending.get(receiver, 0)

    def succeeded(self, receiver: str) -> float | None:
        """Unix seconds of its last delivery."""
        found = self._succeeded.get(receiver, _NEVER)
        return None if found != found else found  # noqa: PLR0124  NaN

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        yield gauges("specd_alerts", "Open alerts.", ("name", "state"), self._alerts.items())
        yield gauge("specd_silences", "Silences in force.", self._silences)
        yield counter(
            "specd_webhook_deliveries_total",
            "Alert notifications by outcome; retried counts attempts, the others notifications.",
            ("receiver", "outcome"),
            self._deliveries.items(),
        )
        yield gauge("specd_webhook_outbox", "Notifications that wait.", sum(self._pending.values()))
        yield gauge(
            "specd_webhook_outbox_durable",
            "1 if what waits is on the disk, 0 if it would be lost with the daemon.",
            self._durable,
        )
        yield from self._receivers()

    def _receivers(self) -> Iterator[Metric]:
        yield gauges(
            "specd_receiver_outbox",
            "Notifications that wait, by receiver.",
            ("receiver",),
            [((name,), count) for name, count in self._pending.items()],
        )
        yield gauges(
            "specd_receiver_failing",
            "1 if the last attempt at this receiver failed.",
            ("receiver",),
            [((name,), failing) for name, failing in self._failing.items()],
        )
        yield gauges(
            "specd_receiver_last_success_timestamp_seconds",
            "When this receiver last took a notification; NaN before.",
            ("receiver",),
            [((name,), at) for name, at in self._succeeded.items()],
        )
