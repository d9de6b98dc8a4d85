"""The bound on a step's seconds, learned from how far steps exceed what was planned."""

from dataclasses import replace
from random import Random

import pytest

from policies.base import Drafting, LoadView
from policies.latency import LatencyBound
from policies.load import LoadPolicy
from policies.settings import PolicySettings
from tests.policies.steps import A_STEP

DRAFTED = (Drafting("ngram", 0.001, requests=1, levels=2, tokens=2),)


def steps(bound, noise, count, rng):
    """Steps that are planned at the bound and take some noise more; the share that took too long."""
    missed = 0
    for _ in range(count):
        seconds = bound.seconds * noise(rng)
        missed += seconds > 0.05
        bound.observe(replace(A_STEP, seconds=seconds, drafting=DRAFTED))
    return missed / count


@pytest.mark.parametrize(
    "noise",
    [
        lambda rng: rng.lognormvariate(0.0, 0.1),
        lambda rng: 1.0 if rng.random() < 0.95 else 1.8,
        lambda rng: rng.uniform(0.9, 1.4),
    ],
    ids=["lognormal", "a prompt now and then", "uniform"],
)
def test_one_step_in_a_hundred_is_too_long_whatever_the_noise(noise):
    """Test that the share of steps above the limit comes to 1 %, by less than half of it."""
    bound, rng = LatencyBound(0.05), Random(3)
    steps(bound, noise, 2000, rng)
    assert steps(bound, noise, 20000, rng) == pytest.approx(0.01, abs=0.004)


def test_a_step_without_drafts_that_is_too_long_does_not_tighten_the_bound():
    bound = LatencyBound(0.05)
    before = bound.seconds
    bound.observe(replace(A_STEP, seconds=1.0))
    assert bound.seconds > before


def test_a_pause_of_the_machine_is_one_miss_and_no_more():
    bound = LatencyBound(0.05)
    bound.observe(replace(A_STEP, seconds=100.0, drafting=DRAFTED))
    assert bound.seconds > 0.035


def test_the_load_policy_has_a_bound_only_where_latency_comes_first():
    calm = LoadView(running=1, waiting=0, kv_free=1.0)
    assert LoadPolicy(PolicySettings(latency_ms=50.0)).step(calm).bound is None
    policy = LoadPolicy(PolicySettings(objective="latency", latency_ms=50.0))
    assert policy.step(calm).bound == pytest.approx(0.04)
    policy.observe(replace(A_STEP, seconds=0.06, drafting=DRAFTED))
    assert policy.step(calm).bound < 0.04
    policy.configure(PolicySettings())
    assert policy.step(calm).bound is None
