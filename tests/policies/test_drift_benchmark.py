"""The bounds of `make bench-drift`, in fewer runs; its traffic is what it says."""

import numpy as np
import pytest

from benchmarks.drift import CASES, Result
from benchmarks.drift_cases import STATIONARY, Stationary, changed, spread_of_rates, stationary
from benchmarks.drift_traffic import Traffic


@pytest.mark.parametrize("case", CASES[:2], ids=lambda case: case.name)
def test_a_step_is_found_in_time(case) -> None:
    found = changed(
        case.change, runs=40, seed=7, mean=case.mean, before=case.before, longest=200, traffic=case.traffic
    )
    assert Result(case, found).met
    assert found.early == 0


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
