"""Requests as they came: when, with how long a prompt, and how much they were answered."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Arrays of one length, in the order of arrival."""

    arrival: NDArray[np.float64]  # seconds from the first one, never falling
    context: NDArray[np.int64]  # tokens of the prompt, >= 1
    generated: NDArray[np.int64]  # tokens of the answer, >= 1
    kind: NDArray[np.int64]  # index into `classes`
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return int(self.generated.sum())

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return float(self.arrival[-1]) if len(self) else 0.0

    def faster(self, rate: float) -> "Trace":
        """The same requests in a `rate`-th of the time."""
        return replace(self, arrival=self.arrival / rate)

    def at_once(self) -> "Trace":
        """The same requests, all there at the start: what is measured then is how fast they are worked off."""
        return replace(self, arrival=np.zeros_like(self.arrival))

    def share(self, machines: int) -> "Trace":
        """What one of so many machines gets, to which requests are dealt in turn."""
        return self._of(np.arange(0, len(self), machines))

    def first(self, count: int) -> "Trace":
        """The first so many."""
        return self._of(np.arange(min(count, len(self))))

    def repeated(self, count: int) -> "Trace":
        """So many, the trace over and over. From one time to the next it takes a mean gap."""
        if not len(self):
            return self
        index = np.arange(count)
        span = self.seconds * (1 + 1 / max(len(self) - 1, 1))
        again = self._of(index % len(self))
        return replace(again, arrival=again.arrival + span * (index // len(self)))

    def _of(self, index: NDArray[np.int64]) -> "Trace":
        arrival = self.arrival[index]
        return Trace(
            arrival=arrival - arrival[0] if len(arrival) else arrival,
            context=self.context[index],
            generated=self.generated[index],
            kind=self.kind[index],
            classes=self.classes,
        )
