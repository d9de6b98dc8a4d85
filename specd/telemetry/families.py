"""Families of metrics out of plain numbers, made at the scrape."""

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from specd.telemetry.tally import Histogram


def counter(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> CounterMetricFamily:
    """A series per tuple of label values; `name` ends in _total."""
    family = CounterMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def gauges(
    name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float]]
) -> GaugeMetricFamily:
    """A series per tuple of label values."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """One series without labels."""
    return GaugeMetricFamily(name, text, value)


def info(name: str, text: str, labels: Mapping[str, str]) -> GaugeMetricFamily:
    """What the labels say; the value is 1."""
    return gauges(name, text, tuple(labels), [(tuple(labels.values()), 1)])


def histogram(name: str, text: str, label: str, values: Mapping[str, Histogram]) -> HistogramMetricFamily:
    """A histogram per value of one label."""
    family = HistogramMetricFamily(name, text, labels=(label,))
    for label_value, one in values.items():
        family.add_metric((label_value,), one.buckets(), one.sum)
    return family


def by_position(name: str, text: str, values: Mapping[str, Sequence[int]]) -> CounterMetricFamily:
    """Counts by proposer and draft position; a sequence begins with position 1."""
    pairs = [
        ((proposer, str(position)), count)
        for proposer, counts in values.items()
        for position, count in enumerate(counts, start=1)
    ]
    return counter(name, text, ("proposer", "position"), pairs)
