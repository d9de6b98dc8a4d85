"""Of which rounds it is told what was behind them."""

import pytest

from engine.telling import Turns

STEPS = 4096


@pytest.mark.parametrize("rounds", [1, 2, 7, 8, 32, 48, 100])
def test_each_has_its_turn_and_few_are_told(rounds: int) -> None:
    """Test that no more than one round in 64 is told of, nor more than one step in eight, and each text at times."""
    turns = Turns()
    told = [turns.next(rounds) for _ in range(STEPS)]
    places = [place for place in told if place is not None]
    most = min(STEPS * rounds / 64, STEPS / 8)
    assert 0.9 * most <= len(places) <= most + 1
    assert set(places) == set(range(rounds))


def test_nobody_has_a_turn_where_nobody_decodes() -> None:
    """Test that a step of prompts alone tells of nothing."""
    turns = Turns()
    assert [turns.next(0) for _ in range(100)] == [None] * 100
