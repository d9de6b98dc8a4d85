"""What one request showed, and the numbers that many of them make. Pure: no clock, no network.

ttft          from sending the request to the first text
inter-token   between two arrivals of text; with speculation several tokens may arrive together
per token     from the first text to the last, over the tokens after the first: what a reader feels
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np


@dataclass(frozen=True, slots=True)
class Speculation:
    """The server's own account of one request. See `examined` and `accepted` in policies.base."""

    rounds: int
    examined: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Times are seconds of one monotonic clock."""

    started: float
    ended: float
    arrivals: tuple[float, ...] = ()
    """When text arrived; a failed request may have some."""
    tokens: int = 0
    counted_by_server: bool = True
    """False: the server reported no usage, so `tokens` is the number of arrivals."""
    speculation: Speculation | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One mix at one concurrency. None stands where nothing was measured."""

    mix: str
    concurrency: int
    requests: int
    """Finished, well or not."""
    errors: dict[str, int]
    """Failed requests by message."""
    seconds: float
    tokens: int
    tokens_per_second: float
    tokens_counted_by: str
    ttft: Quantiles | None
    inter_token: Quantiles | None
    per_token: Quantiles | None
    acceptance: float | None
    """Accepted over examined tokens."""
    tokens_per_round: float | None

    @property
    def failed(self) -> int:
        """Requests that brought an error."""
        return sum(self.errors.values())


@dataclass(slots=True)
class Level:
    """Samples of one mix at one concurrency, as they come in."""

    mix: str
    concurrency: int
    samples: list[Sample] = field(default_factory=list)


def quantiles(values: Sequence[float]) -> Quantiles | None:
    """Interpolated between neighbours; None for no values."""
    if not values:
        return None
    p50, p95, p99 = np.percentile(values, (50, 95, 99)).tolist()
    return Quantiles(p50, p95, p99)


def summarize(level: Level) -> Summary:
    """The level must hold a sample. Failed requests count as errors and nowhere else."""
    assert level.samples, "a level without a sample has nothing to say"
    good = [sample for sample in level.samples if sample.error is None]
    seconds = max(s.ended for s in level.samples) - min(s.started for s in level.samples)
    tokens = sum(sample.tokens for sample in good)
    acceptance, tokens_per_round = _speculation(good)
    return Summary(
        mix=level.mix,
        concurrency=level.concurrency,
        requests=len(level.samples),
        errors=dict(Counter(s.error for s in level.samples if s.error is not None)),
        seconds=seconds,
        tokens=tokens,
        tokens_per_second=tokens / seconds if seconds else 0.0,
        tokens_counted_by="server" if all(s.counted_by_server for s in good) else "arrivals",
        ttft=quantiles([s.arrivals[0] - s.started for s in good if s.arrivals]),
        inter_token=quantiles([gap for s in good for gap in _gaps(s.arrivals)]),
        per_token=quantiles(list(_per_token(good))),
        acceptance=acceptance,
        tokens_per_round=tokens_per_round,
    )


@dataclass(frozen=True, slots=True)
class Whole:
    """All phases of a ramp, one after another."""

    seconds: float
    tokens: int
    tokens_per_second: float


def whole(phases: Sequence[Summary]) -> Whole:
    """The time that requests were at work; what lies between two phases does not count."""
    seconds, tokens = sum(phase.seconds for phase in phases), sum(phase.tokens for phase in phases)
    return Whole(seconds, tokens, tokens / seconds if seconds else 0.0)


def _gaps(arrivals: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(arrivals)]


def _per_token(samples: Iterable[Sample]) -> Iterable[float]:
    for sample in samples:
        if sample.tokens > 1 and sample.arrivals:
            yield (sample.arrivals[-1] - sample.arrivals[0]) / (sample.tokens - 1)


def _speculation(samples: Sequence[Sample]) -> tuple[float | None, float | None]:
    """Acceptance and tokens per round, over the requests whose server told."""
    told = [(s.speculation, s.tokens) for s in samples if s.speculation is not None]
    rounds = sum(speculation.rounds for speculation, _ in told)
    examined = sum(speculation.examined for speculation, _ in told)
    accepted = sum(speculation.accepted for speculation, _ in told)
    tokens = sum(tokens for _, tokens in told)
    return accepted / examined if examined else None, tokens / rounds if rounds else None
