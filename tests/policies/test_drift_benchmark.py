"""The bounds of `make bench-drift`, in fewer runs; its traffic is what it says."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.drift import CASES, result
from benchmarks.drift_cases import STATIONARY, Stationary, spread_of_rates, stationary
from benchmarks.drift_traffic import Traffic


@pytest.mark.parametrize("case", [case for case in CASES if case.one_of_four], ids=lambda case: case.name)
def test_a_step_of_one_position_and_class_is_found_in_time(case) -> None:
    """And nothing is said of the classes beside it."""
    found = result(replace(case, longest=200), runs=40, seed=7)
    assert found.met
    assert found.found.early == found.found.elsewhere == 0


@pytest.mark.parametrize("case", STATIONARY, ids=lambda case: case.name)
def test_nothing_is_cried_for_nothing(case: Stationary) -> None:
    found = stationary(case, runs=20, requests=600, seed=8, traffic=Traffic())
    assert found.alerts == 0
    assert 0.1 < found.highest < 1


def test_requests_differ_more_than_coins_would() -> None:
    seen, alone = spread_of_rates(Traffic(), 0.7, seed=9)
    assert seen > 1.3 * alone


def test_chances_have_the_mean_of_what_becomes_of_them_and_less_spread() -> None:
    drawn = [
        Traffic(by_chance=known).draw(np.random.default_rng(3), np.full(4000, 0.6), np.full(4000, 4))[0][:, 0]
        for known in (False, True)
    ]
    assert drawn[0].mean() == pytest.approx(drawn[1].mean(), abs=0.005)
    assert drawn[1].std() < 0.85 * drawn[0].std()
