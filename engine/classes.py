"""Traffic classes as clients name them, kept few: each becomes a label of metrics that never goes away."""

from typing import Final

OTHER: Final = "other"
PATTERN: Final = r"^[A-Za-z0-9_.-]+$"
LONGEST: Final = 64
MOST: Final = 64


class ClassNames:
    """The first `limit` names that come, and "other" for the rest."""

    def __init__(self, limit: int = MOST) -> None:
        self._limit = limit
        self._names = {"default", OTHER}

    def known(self, name: str) -> str:
        """The name under which this class is counted."""
        if name in self._names:
            return name
        if len(self._names) >= self._limit:
            return OTHER
        self._names.add(name)
        return name
