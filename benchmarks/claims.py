"""A ratio that is claimed, and tables of them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Claim:
    """A ratio of two medians and the bound it must keep."""

    what: str
    ours: float
    other: float
    bound: float
    at_most: bool = False  # else at least

    @property
    def ratio(self) -> float:
        """Ours over the other's."""
        return self.ours / self.other

    @property
    def met(self) -> bool:
        """Whether the bound is kept."""
        return self.ratio <= self.bound if self.at_most else self.ratio >= self.bound

    @property
    def cells(self) -> tuple[str, ...]:
        """For a table."""
        sign = "≤" if self.at_most else "≥"
        figures = (f"{self.ours:.3g}", f"{self.other:.3g}", f"{self.ratio:.2f}", f"{sign} {self.bound}")
        return self.what, *figures, "met" if self.met else "NOT MET"

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"ratio": self.ratio, "met": self.met}


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]
