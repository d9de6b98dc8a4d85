"""Tables of figures, for people."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table


def figures(header: Iterable[str], rows: Iterable[Sequence[str]], *, named: bool = True) -> Table:
    """Columns of numbers, to the right; named: the first one says what a row is, to the left."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, column in enumerate(header):
        table.add_column(column, justify="left" if named and place == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table
