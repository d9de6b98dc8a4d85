"""Tokens per second that steps with drafts gave, beside those without, by how many requests decoded."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from engine.api import StepReport
from policies.base import Reason
from policies.drift.losing import Losing, name_of, place_of


class _Arm:
    """Tokens and seconds of its steps, old ones fading."""

    __slots__ = ("seconds", "tokens")

    FADE: Final = 0.5 ** (1 / 256)
    """256 steps later a step weighs half."""

    def __init__(self) -> None:
        self.tokens = self.seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self.tokens = self.tokens * self.FADE + tokens
        self.seconds = self.seconds * self.FADE + seconds

    @property
    def rate(self) -> float | None:
        """None while there was no step."""
        return round(self.tokens / self.seconds, 1) if self.seconds else None


@dataclass(frozen=True, slots=True)
class _Arms:
    drafting: _Arm
    plain: _Arm


class Goodput:
    """What drafting gives, by measured time. Steps that read prompts tell nothing of it and are left out, and so are
    those whose only drafts were made for what they show: nobody expects them to be worth it.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """clock: gives Unix seconds."""
        self._clock = clock
        self._arms: dict[int, _Arms] = {}
        self.losing = Losing()
        """Is told of the same steps, for the alarm."""

    def add(self, report: StepReport) -> None:
        """Count one step."""
        phases = report.phases
        seconds = phases.schedule + phases.draft + phases.verify + phases.commit
        drafted = [each.reason for each in report.rounds if each.drafted]
        only_probes = drafted and all(reason == Reason.PROBE for reason in drafted)
        if report.prefill_rows or not report.rounds or not seconds or only_probes:
            return
        running = len(report.rounds)
        place = place_of(running)
        arms = self._arms.setdefault(place, _Arms(_Arm(), _Arm()))
        (arms.drafting if drafted else arms.plain).add(report.committed, seconds)
        self.losing.observe(running, report.committed, seconds, drafts=bool(drafted), t=self._clock())

    def snapshot(self) -> list[dict[str, Any]]:
        """By rising number of requests; None for an arm that had no step."""
        return [
            {"running": name_of(place), "drafting": arms.drafting.rate, "plain": arms.plain.rate}
            for place, arms in sorted(self._arms.items())
        ]
