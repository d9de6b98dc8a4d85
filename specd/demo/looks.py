"""What can be seen of a daemon from outside, look by look."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

_LATELY: Final = 3.0
_COUNTERS: Final = "specd_spec_decode_num_{}_tokens_per_pos_total"


@dataclass(frozen=True, slots=True)
class Look:
    """How the daemon stood at a moment."""

    at: float
    """Seconds since the demo began."""
    running: int
    load: str
    """full, shrunk or off."""
    tokens: float
    """Written since the daemon began."""
    tokens_per_second: float
    """Of the last seconds, as are the following."""
    k: float | None
    """Mean of all rounds; None where there were none."""
    acceptance: Mapping[str, float]
    """Of the first drafted token, by who drafted."""


class _Counts(NamedTuple):
    at: float
    tokens: float
    rounds: float
    levels: float
    examined: dict[str, float]
    accepted: dict[str, float]


class Looker:
    """Makes looks of what the admin listener answers."""

    def __init__(self) -> None:
        self._counts: deque[_Counts] = deque()

    def look(self, at: float, status: Mapping[str, Any], metrics: str) -> Look:
        """To be asked with rising times."""
        now = _counted(at, metrics)
        while len(self._counts) > 1 and self._counts[0].at < at - _LATELY:
            self._counts.popleft()
        before = self._counts[0] if self._counts else now
        self._counts.append(now)
        rounds, seconds = now.rounds - before.rounds, now.at - before.at
        return Look(
            at=at,
            running=status["load"]["running"],
            load=status["load"]["state"],
            tokens=now.tokens,
            tokens_per_second=(now.tokens - before.tokens) / seconds if seconds else 0.0,
            k=(now.levels - before.levels) / rounds if rounds > 0 else None,
            acceptance=_rates(before, now),
        )


def _counted(at: float, metrics: str) -> _Counts:
    samples = [sample for family in text_string_to_metric_families(metrics) for sample in family.samples]

    def total(name: str) -> float:
        return sum(sample.value for sample in samples if sample.name == name)

    def first(what: str) -> dict[str, float]:
        name = _COUNTERS.format(what)
        return {
            sample.labels["proposer"]: sample.value
            for sample in samples
            if sample.name == name and sample.labels["position"] == "1"
        }

    # Each token has a time: to the first, or since the one before.
    tokens = total("specd_time_to_first_token_seconds_count") + total("specd_inter_token_seconds_count")
    rounds, levels = total("specd_draft_length_count"), total("specd_draft_length_sum")
    return _Counts(at, tokens, rounds, levels, first("examined"), first("accepted"))


def _rates(before: _Counts, now: _Counts) -> dict[str, float]:
    found = {}
    for proposer, count in now.examined.items():
        examined = count - before.examined.get(proposer, 0.0)
        if examined > 0:
            accepted = now.accepted.get(proposer, 0.0) - before.accepted.get(proposer, 0.0)
            found[proposer] = accepted / examined
    return found
