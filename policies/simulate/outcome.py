"""What came of a simulation."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one policy. Times in seconds of the simulated machine."""

    policy: str
    requests: int
    tokens: int
    seconds: float  # from the first arrival to the last token
    tokens_per_second: float
    inter_token_mean: float  # from the first token of an answer to its last, over the tokens after the first
    inter_token_p99: float  # between two arrivals of text of a request; a round's tokens arrive together
    first_token_mean: float
    first_token_p99: float
    steps: int
    drafted: int
    accepted: int
    levels: dict[int, int]  # k -> rounds of a request with it
    reasons: dict[str, int]  # what the policy said -> rounds of a request; empty where it says nothing


@dataclass(slots=True)
class Ledger:
    """What is written down while it runs."""

    lengths: list[float] = field(default_factory=list)  # of each step in which somebody decoded, seconds
    decoded: list[int] = field(default_factory=list)  # requests that did
    waits: list[float] = field(default_factory=list)  # for first tokens
    levels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    tokens: int = 0  # of rounds: beside the first ones
    steps: int = 0
    accepted: int = 0

    def count(self, k: NDArray[np.int64]) -> None:
        """The levels of a step's rounds."""
        found = np.bincount(k, minlength=len(self.levels))
        if len(found) > len(self.levels):
            self.levels = np.pad(self.levels, (0, len(found) - len(self.levels)))
        self.levels += found

    def outcome(self, policy: str, seconds: float, reasons: Counter[str]) -> Outcome:
        """Summed up."""
        lengths, decoded = np.array(self.lengths), np.array(self.decoded, dtype=np.int64)
        tokens = self.tokens + len(self.waits)
        return Outcome(
            policy=policy,
            requests=len(self.waits),
            tokens=tokens,
            seconds=seconds,
            tokens_per_second=tokens / seconds if seconds else 0.0,
            inter_token_mean=float(lengths @ decoded) / max(self.tokens, 1),
            inter_token_p99=_weighted(lengths, decoded, 0.99),
            first_token_mean=float(np.mean(self.waits)) if self.waits else 0.0,
            first_token_p99=float(np.percentile(self.waits, 99)) if self.waits else 0.0,
            steps=self.steps,
            drafted=int(self.levels @ np.arange(len(self.levels))),
            accepted=self.accepted,
            levels={k: int(count) for k, count in enumerate(self.levels) if count},
            reasons=dict(reasons.most_common()),
        )


def _weighted(values: NDArray[np.float64], weights: NDArray[np.int64], share: float) -> float:
    """The least value that so large a share of the weight does not exceed; 0 for no values."""
    if not len(values):
        return 0.0
    order = np.argsort(values)
    heaped = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(heaped, share * heaped[-1])])
