"""Arrays with a row for each stratum, that grow and outlive a restart together."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray


class Table:
    """Its arrays are the attributes that `COLUMNS` names; rows are their first axis."""

    COLUMNS: ClassVar[tuple[str, ...]]

    def grow(self) -> None:
        """Twice as many rows; the new ones are as they are at first."""
        fresh = type(self)(self.rows)  # type: ignore[call-arg]
        for name in self.COLUMNS:
            setattr(self, name, np.concatenate([self._column(name), getattr(fresh, name)]))

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self._column(self.COLUMNS[0]))

    def saved(self, row: int) -> dict[str, bytes]:
        """A row's values."""
        return {name: self._column(name)[row].tobytes() for name in self.COLUMNS}

    def restore(self, row: int, saved: Mapping[str, bytes]) -> None:
        """Take over what `saved` gave. Raises `ValueError` or `KeyError` where it is of another shape."""
        for name in self.COLUMNS:
            column = self._column(name)
            column[row] = np.frombuffer(saved[name], column.dtype).reshape(column.shape[1:])

    def _column(self, name: str) -> NDArray[Any]:
        column: NDArray[Any] = getattr(self, name)
        return column
