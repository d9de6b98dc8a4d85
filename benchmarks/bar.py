"""How far a long measurement is and how long it will take yet, and the journal that it can be resumed from."""

import time
from collections.abc import Callable
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from benchmarks.journal import Journal


class Bar:
    """Counts weights that stand for time: what was measured so far tells how long the rest takes."""

    def __init__(self, total: float, journal: Journal) -> None:
        self._journal = journal
        self._left = total
        self._done = self._seconds = 0.0
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, TextColumn("{task.fields[rest]}"), console=Console(stderr=True))
        self._task = self._progress.add_task("loading", total=total, rest="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def measured(self, key: str, weight: float, measure: Callable[[], Any]) -> Any:
        """What the journal knows under the key, or a measurement of this weight."""
        known = self._journal.knows(key)
        self._progress.update(self._task, description=key)
        begin = time.perf_counter()
        value = self._journal.measured(key, measure)
        if not known:
            self._done += weight
            self._seconds += time.perf_counter() - begin
        self.skip(weight)
        return value

    def skip(self, weight: float) -> None:
        """So much has been done, or need not be done."""
        self._left -= weight
        rest = self._left * self._seconds / self._done if self._done else 0.0
        self._progress.update(self._task, advance=weight, rest=f"about {rest / 60:.0f} min more")
