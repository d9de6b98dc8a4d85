"""What the rounds of some requests showed of their drafts, by position."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from engine.api import RequestReport

DEPTH: Final = 6
"""Positions that are reported."""

LONGEST: Final = 8
"""Levels of a draft, at most."""


@dataclass
class Shown:
    """Sums over requests."""

    examined: list[int] = field(default_factory=lambda: [0] * LONGEST)
    accepted: list[int] = field(default_factory=lambda: [0] * LONGEST)
    rounds: int = 0
    tokens: int = 0

    def add(self, report: RequestReport) -> None:
        """Count one finished request, of at most LONGEST levels a round."""
        for position, (seen, kept) in enumerate(zip(report.examined, report.accepted, strict=True)):
            self.examined[position] += seen
            self.accepted[position] += kept
        self.rounds += report.rounds
        self.tokens += report.tokens

    @classmethod
    def together(cls, several: Iterable["Shown"]) -> "Shown":
        """The sums of all."""
        total = cls()
        for one in several:
            total.examined = [a + b for a, b in zip(total.examined, one.examined, strict=True)]
            total.accepted = [a + b for a, b in zip(total.accepted, one.accepted, strict=True)]
            total.rounds += one.rounds
            total.tokens += one.tokens
        return total

    @property
    def conditional(self) -> list[float]:
        """By position: the share of those examined that were accepted; 0 where none was."""
        return [kept / seen if seen else 0.0 for kept, seen in zip(self.accepted, self.examined, strict=True)]

    @property
    def per_round(self) -> float:
        """Tokens that a round commits, the target's own included."""
        return self.tokens / max(self.rounds, 1)

    @property
    def cells(self) -> list[str]:
        """For a table."""
        rates = [f"{rate:.2f}" for rate in self.conditional[:DEPTH]]
        return [*rates, f"{self.per_round:.2f}", f"{self.examined[0]}"]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "conditional": self.conditional,
            "per_round": self.per_round,
            "examined": self.examined,
            "accepted": self.accepted,
        }
