"""How much of the machine an engine takes beside another one."""

from collections.abc import Iterator

import pytest
import torch

from engine.api import Share
from engine.share import Machine


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("threads", "half"), [(6, 3), (3, 1), (1, 1)])
def test_threads_of_each_share(threads: int, half: int) -> None:
    """Two that stand beside each other have no more threads than one alone, and nobody has less than one."""
    machine = Machine(threads)
    found = []
    shares: list[Share] = ["beside", "alone", "behind", "alone"]
    for share in shares:
        machine.take(share)
        found.append(torch.get_num_threads())
    assert found == [half, threads, 1, threads]


def test_where_no_number_is_set_all_threads_are_taken() -> None:
    before = torch.get_num_threads()
    machine = Machine(0)
    machine.take("behind")
    machine.take("alone")
    assert torch.get_num_threads() == before
