"""Whose request is next. Pure: no clock, no I/O.

Each tenant has a line of its own, and the one that has had the least of the engine is next: tokens of prompts and
texts, divided by its weight. A tenant that comes, or comes back, begins where the others are, so that nobody saves up
for later by staying away. This is the virtual token counter of Sheng et al., "Fairness in Serving Large Language
Models" (2024): what a request costs need not be known before it has ended.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
Weight = Callable[[str], float]


def equal(_: str) -> float:
    """Every tenant's weight, where none has another."""
    return 1.0


@dataclass(slots=True)
class _Share(Generic[T]):
    """One tenant's."""

    had: float
    """Tokens for its weight."""
    line: deque[T] = field(default_factory=deque)
    inside: int = 0
    """Whose turn has come, and that have not left yet."""


class FairLine(Generic[T]):
    """Items of tenants in line. Invariant: a tenant is known while it has items in line or inside."""

    def __init__(self, weight: Weight) -> None:
        """`weight`: a tenant's, above 0; asked for anew each time."""
        self._weight = weight
        self._shares: dict[str, _Share[T]] = {}
        self._now = 0.0  # what the tenant had whose turn came last

    def __len__(self) -> int:
        return sum(len(share.line) for share in self._shares.values())

    def __iter__(self) -> Iterator[T]:
        return (item for share in self._shares.values() for item in share.line)

    def add(self, tenant: str, item: T) -> None:
        """To the end of the tenant's line."""
        share = self._shares.setdefault(tenant, _Share(self._now))
        if not share.line:
            share.had = max(share.had, self._now)
        share.line.append(item)

    def next(self) -> T:
        """Whose turn it is; it is inside from now on. Somebody must be in line."""
        share = min((one for one in self._shares.values() if one.line), key=lambda one: one.had)
        self._now = max(self._now, share.had)
        share.inside += 1
        return share.line.popleft()

    def used(self, tenant: str, tokens: int) -> None:
        """The engine has read or written so many for one that is inside."""
        share = self._shares.get(tenant)
        if share is not None:
            share.had += tokens / self._weight(tenant)

    def put_back(self, tenant: str, item: T) -> None:
        """One that was inside is first in its tenant's line again."""
        share = self._shares[tenant]
        share.inside -= 1
        share.line.appendleft(item)

    def left(self, tenant: str) -> None:
        """One that was inside is no more."""
        self._shares[tenant].inside -= 1
        self._forget(tenant)

    def drop(self, tenant: str, item: T) -> bool:
        """Take it out of the line. False where it is not in it."""
        share = self._shares.get(tenant)
        if share is None or item not in share.line:
            return False
        share.line.remove(item)
        self._forget(tenant)
        return True

    def clear(self) -> None:
        """Nobody is in line any more."""
        for tenant in list(self._shares):
            self._shares[tenant].line.clear()
            self._forget(tenant)

    def displaced(self, tenant: str, held: Mapping[str, int]) -> T | None:
        """Who is to leave a full house for a newcomer of this tenant: the last in the line of the tenant that holds the
        most places for its weight, if that is more than the newcomer's would hold. `held`: places by tenant.
        """
        in_line = [name for name, share in self._shares.items() if share.line and name != tenant]
        if not in_line:
            return None
        most = max(in_line, key=lambda name: held[name] / self._weight(name))
        fair = held[most] / self._weight(most) > (held[tenant] + 1) / self._weight(tenant)
        return self._shares[most].line[-1] if fair else None

    def _forget(self, tenant: str) -> None:
        share = self._shares[tenant]
        if not share.line and not share.inside:
            del self._shares[tenant]
