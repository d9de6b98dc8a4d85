"""What is tried in a step, and who waits for it."""

import numpy as np
import pytest

from policies.columns import Columns
from policies.exploring import Batch, Exploring, Left, Try
from policies.lengths import Prices
from policies.settings import PolicySettings
from policies.standing import Standing

NOTHING = np.zeros(2, dtype=np.intp)


@pytest.mark.parametrize(
    ("left", "tried"), [(Left(8), [0, 1]), (Left(2), [1]), (Left(0), []), (Left(8, cost=0.1), [])]
)
def test_a_tree_that_does_not_fit_keeps_nobody_waiting_for_a_probe(left: Left, tried: list[int]) -> None:
    """Test that of two at k = 0 the first, who has waited longer and is offered a tree of width 4 alone, is passed over
    where fewer rows are left, and that neither is tried in a step that has no time for it.
    """
    standing = Standing()
    rows = standing.rows(("a", "b"))
    standing.idle[rows] = 99, 50
    columns = Columns(
        k=np.array([[8, 8]]),
        arm=np.array([[0, 1]]),
        proposer=np.zeros((1, 2), dtype=np.intp),
        width=np.array([[4, 1]]),
        owed=np.zeros((1, 2)),
        slot=np.zeros((1, 2), dtype=np.intp),
        own=np.zeros((1, 2), dtype=np.bool_),
        trees=True,
    )
    prices = Prices(np.linspace(1.0, 4.0, 17), *np.zeros((4, 1)))
    batch = Batch(("c", "c"), rows, columns, columns.k, prices, 16)
    exploring = Exploring(standing, PolicySettings())
    found = exploring.tries(batch, NOTHING, NOTHING, left, one=False, gained=1.0, step=1)
    assert found == [Try(request, 0, 1) for request in tried]
