"""What `/metrics` of the router says."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from specd.router.instances import Instances
from specd.router.traffic import Traffic
from specd.telemetry.families import counter, gauge, gauges, histogram, info


class RouterMetrics(Collector):
    """Read at the scrape."""

    def __init__(self, instances: Instances, traffic: Traffic, version: str) -> None:
        self._instances = instances
        self._traffic = traffic
        self._version = version
        self.last_reload_good = True
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        by = ("instance",)
        instances, traffic = self._instances.all.values(), self._traffic
        yield counter(
            "specd_router_requests_total",
            "What instances were asked, by what came of it.",
            ("instance", "outcome"),
            traffic.outcomes.items(),
        )
        yield counter(
            "specd_router_decisions_total",
            "Requests by why they went where they went.",
            ("reason",),
            [((reason,), count) for reason, count in traffic.reasons.items()],
        )
        yield gauges(
            "specd_router_running_requests",
            "Requests at an instance now.",
            by,
            [((one.name,), one.running) for one in instances],
        )
        yield gauges(
            "specd_router_instance_up",
            "1 while the instance serves.",
            by,
            [((one.name,), one.looked_at and one.down is None) for one in instances],
        )
        yield histogram(
            "specd_router_first_piece_seconds",
            "From asking an instance to the first piece of its answer.",
            "instance",
            traffic.first,
        )
        yield gauge(
            "specd_load_state",
            "What the load policy allows: 0 drafts, 2 none; 1 fewer than the instance drafts.",
            traffic.load_state,
        )
        yield gauge(
            "specd_config_last_reload_successful",
            "1 if the last reload of the config was taken over.",
            self.last_reload_good,
        )
        yield info("specd_build_info", "The version of specd.", {"version": self._version})
