"""A page for Prometheus, read: the samples whose names one knows, whatever else it holds."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Self

from specd.observe.errors import ObserveError

_SAMPLE = re.compile(
    r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})?[ \t]+(?P<value>\S+)(?:[ \t]+-?\d+)?[ \t]*$"
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    """A line of the page. Labels are as they are written."""

    labels: Mapping[str, str]
    value: float


class Page:
    """Samples by name; a colon in a name is an underscore here, as in newer versions of the same engines."""

    def __init__(self, samples: Mapping[str, list[Sample]]) -> None:
        self._samples = samples

    @classmethod
    def read(cls, text: str) -> Self:
        """Raises `ObserveError` where it is no such page."""
        found: dict[str, list[Sample]] = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, sample = _sample(line)
                found.setdefault(name.replace(":", "_"), []).append(sample)
        return cls(found)

    def __contains__(self, name: str) -> bool:
        return name in self._samples

    @property
    def names(self) -> Iterable[str]:
        """Of all samples."""
        return self._samples.keys()

    def sum(self, name: str) -> float:
        """Over all series, such as those of several ranks; NaN without any."""
        values = [sample.value for sample in self._samples.get(name, ())]
        return math.fsum(values) if values else math.nan

    def most(self, name: str) -> float:
        """Of all series; NaN without any."""
        return max((sample.value for sample in self._samples.get(name, ())), default=math.nan)

    def mean(self, name: str) -> float:
        """Of all series; NaN without any."""
        values = [sample.value for sample in self._samples.get(name, ())]
        return math.fsum(values) / len(values) if values else math.nan

    def by_label(self, name: str, label: str) -> list[float]:
        """Sums for each value of a label that is a number, in rising order of it."""
        sums: dict[float, float] = {}
        for at, value in self._with(name, label):
            sums[at] = sums.get(at, 0.0) + value
        return [sums[at] for at in sorted(sums)]

    def _with(self, name: str, label: str) -> Iterator[tuple[float, float]]:
        for sample in self._samples.get(name, ()):
            try:
                yield float(sample.labels[label]), sample.value
            except (KeyError, ValueError):
                raise ObserveError(f'a sample of {name} has no number as its label "{label}"') from None


def _sample(line: str) -> tuple[str, Sample]:
    match = _SAMPLE.match(line)
    value = None if match is None else _number(match["value"])
    if match is None or value is None:
        raise ObserveError(f"what it answers is no page of metrics: {line[:60]!r}")
    return match["name"], Sample(dict(_LABEL.findall(match["labels"] or "")), value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
