"""Costs are learned from steps, whatever noise, prompts and pauses there are between; the truth is known here."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.base import Drafting, StepSeen
from policies.cost import DraftCost, StepCosts
from policies.cost_model import CostModel, rising, shared
from policies.tracker import LASTING
from tests.policies.machine import TRUTH, Machine, mistaken

ROWS = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256])


def off(model: CostModel, truth: StepCosts, *, scale: float = 1.0) -> np.ndarray:
    """Relative errors of the curve at ROWS."""
    return model.now.table(256)[ROWS] / (scale * truth.table(256)[ROWS]) - 1.0


@pytest.mark.parametrize("seed", range(3))
def test_costs_that_are_off_by_30_percent_are_recovered(seed: int) -> None:
    machine = Machine(noise=0.05, seed=seed)
    model = CostModel(mistaken(TRUTH, 0.3, seed))
    assert np.abs(off(model, TRUTH)).max() > 0.1
    for i in range(1500):
        model.observe(machine.any_step(1 if i % 3 == 0 else 32))
    assert np.abs(off(model, TRUTH)).max() < 0.05
    assert model.now.key == pytest.approx(TRUTH.key, rel=0.15)
    assert model.now.sequence == pytest.approx(TRUTH.sequence, abs=2e-5)
    draft, true = model.now.draft("eagle"), TRUTH.draft("eagle")
    for levels, tokens, owed in ((1, 1, 0), (4, 4, 0), (4, 100, 0), (2, 2, 60)):
        want = true.fixed + levels * true.level + tokens * true.node + owed * true.owed
        got = draft.fixed + levels * draft.level + tokens * draft.node + owed * draft.owed
        assert got == pytest.approx(want, rel=0.06)


def test_where_one_number_of_rows_is_seen_all_are_scaled_together() -> None:
    """From the beginning, by steps that are half as slow again as the start says."""
    machine, model = Machine(noise=0.05), CostModel(TRUTH)
    machine.slower = 1.3
    for _ in range(400):
        model.observe(machine.step(1, 0))
    assert off(model, TRUTH, scale=1.3)[0] == pytest.approx(0.0, abs=0.03)
    assert np.abs(off(model, TRUTH, scale=1.3)).max() < 0.08


def test_what_is_not_seen_follows_what_is_seen_on_both_sides_of_it() -> None:
    """Test that rows which no step has are not left behind as dear as they were begun with: nobody would try them."""
    machine = Machine(noise=0.05)
    rows = np.array([4, 5, 6, 7])
    dear = [(n, cost * (1.3 if n in (4, 8) else 1.0)) for n, cost in TRUTH.steps]
    model = CostModel(replace(TRUTH, steps=tuple(dear)))
    for i in range(300):
        model.observe(machine.step(1, (1, 2, 8)[i % 3]))
    assert np.abs(model.now.table(16)[rows] / TRUTH.table(16)[rows] - 1.0).max() < 0.08


@pytest.mark.parametrize("slower", [1.5, 1 / 1.5, 4.0])
def test_a_lasting_change_is_followed_at_once_and_changes_no_shape(slower: float) -> None:
    machine, model = Machine(noise=0.05), CostModel(TRUTH)
    for _ in range(200):
        model.observe(machine.step(4, 0))
    before = model.now.table(256)[ROWS]
    machine.slower = slower
    for _ in range(2 * LASTING):
        model.observe(machine.step(4, 0))
    assert model.now.table(4)[4] == pytest.approx(slower * TRUTH.table(4)[4], rel=0.06)
    assert model.now.table(256)[ROWS] / before == pytest.approx(slower, rel=0.08)


def test_a_change_is_followed_in_much_noise_too() -> None:
    machine, model = Machine(noise=0.25), CostModel(TRUTH)
    for _ in range(200):
        model.observe(machine.step(4, 0))
    machine.slower = 1.5
    for _ in range(150):
        model.observe(machine.step(4, 0))
    assert model.now.table(4)[4] == pytest.approx(1.5 * TRUTH.table(4)[4], rel=0.15)


def test_a_start_in_another_unit_is_put_right() -> None:
    """What a proposer says of itself is in plain steps, and so is the guess of a machine that nobody has measured."""
    machine = Machine()
    model = CostModel(replace(TRUTH, steps=tuple((rows, cost / 6e-3) for rows, cost in TRUTH.steps)))
    for _ in range(40):
        model.observe(machine.step(2, 0))
    assert np.abs(off(model, TRUTH)).max() < 0.15


@pytest.mark.parametrize("pause", [100.0, 0.01])
def test_outliers_move_nothing(pause: float) -> None:
    """A storm of seven in a row, and one step in twenty; also at the very beginning."""
    machine, model = Machine(noise=0.03), CostModel(TRUTH)
    for i in range(400):
        machine.slower = pause if i < 2 or i % 20 == 0 or 200 < i <= 200 + LASTING - 1 else 1.0
        model.observe(machine.any_step())
    assert np.abs(off(model, TRUTH)).max() < 0.06


def crowded(seed: int) -> Iterator[StepSeen]:
    """Of a tiny model that few decode with, on a host that others take most of, now more and now less."""
    rng, load = np.random.default_rng(seed), 1.0
    for _ in range(1300):
        if rng.random() < 0.01:
            load = float(rng.choice([0.3, 1.0, 3.0, 10.0, 30.0]))
        texts = int(rng.integers(1, 4))
        rows = texts + int(rng.integers(0, texts + 1))
        noise = float(rng.normal(0.0, rng.choice([0.05, 0.5])))
        pause = float(rng.choice([0.004, 0.01, 0.1])) if rng.random() < 0.02 else 0.0
        seconds = (1.5e-3 + 3e-5 * rows) * load * float(np.exp(noise)) + pause
        yield StepSeen(0.0, seconds, rows, 0, 0, texts, int(rng.integers(10, 120)) * texts, texts)


def test_on_a_crowded_host_a_plain_step_never_seems_to_cost_nothing() -> None:
    """What a policy reckons is divided by it. Begun in another unit, as with a model that is too small to measure, and
    with the one of seventy seeds by which all that was seen seemed to be the texts' and nothing the rows'.
    """
    model = CostModel(StepCosts())
    for step in crowded(55):
        model.observe(step)
        assert model.now.plain > 0.0


@given(st.lists(st.sampled_from([0.0, 0.0, 0.1, 1.0, 7.0]), min_size=3, max_size=3))
def test_a_step_costs_at_least_its_share_of_a_larger_one(costs: list[float]) -> None:
    rows = np.array([1.0, 4.0, 8.0])
    found = shared(np.array(costs), rows)
    want = [max(cost * min(n / m, 1.0) for cost, m in zip(costs, rows, strict=True) if m >= n) for n in rows]
    assert found == pytest.approx(want)


def test_steps_with_prompts_in_them_teach_nothing_of_the_target() -> None:
    machine, model = Machine(), CostModel(TRUTH)
    machine.slower = 5.0
    before = model.now.table(256).copy()
    for _ in range(50):
        model.observe(machine.step(4, 0, prompt=32))
    assert (model.now.table(256) == before).all()
    assert model.error() == ()


def test_a_padded_step_costs_what_its_size_costs() -> None:
    """The curve is flat up to a captured size, and jumps there, learned or not."""
    sizes = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    truth = replace(TRUTH, sizes=sizes)
    machine, model = Machine(truth, noise=0.03), CostModel(mistaken(truth, 0.2, 0))
    for _ in range(600):
        model.observe(machine.any_step(5))
    table = model.now.table(40)
    assert table[9] == table[12] < table[13] == table[16]
    assert table[33] < table[34], "steps larger than the largest size run as they are"
    assert table[: sizes[-1] + 1] == pytest.approx(truth.table(sizes[-1]), rel=0.06)


def test_errors_are_those_of_predictions_made_before() -> None:
    """Of noise of 10 %, the median of |ln| is 0.067 and the 90th percentile 0.164, once the costs are learned; before,
    they are as large as the start is wrong, where it is.
    """
    machine, model = Machine(noise=0.1), CostModel(TRUTH)
    for _ in range(1000):
        model.observe(machine.any_step())
    overall, *ranges = model.error()
    assert (overall.rows, overall.steps) == ("all", 256)
    assert overall.median == pytest.approx(0.067, abs=0.02)
    assert overall.p90 == pytest.approx(0.164, abs=0.04)
    assert [each.rows for each in ranges] == ["1", "2-4", "5-16", "17-64", "65+"]
    wrong = CostModel(replace(TRUTH, steps=tuple((rows, cost * 2) for rows, cost in TRUTH.steps)))
    quiet = Machine(noise=0.0)
    wrong.observe(quiet.step(3, 0, context=0))
    assert [(each.rows, each.median) for each in wrong.error()] == [
        (name, pytest.approx(np.log(2.0), rel=0.02)) for name in ("all", "2-4")
    ]


def test_what_was_measured_of_one_proposer_leaves_the_rest_as_it_was_learned() -> None:
    machine, model = Machine(), CostModel(mistaken(TRUTH, 0.3, 1))
    for _ in range(300):
        model.observe(machine.any_step())
    table, learned = model.now.table(64).copy(), model.now.draft("eagle")
    model.adopt({"medusa": DraftCost(1e-3)})
    assert (model.now.table(64) == table).all()
    assert model.now.draft("eagle") == learned
    assert model.now.draft("medusa") == DraftCost(1e-3)


def test_the_reading_changes_only_with_what_is_read() -> None:
    """A policy that keeps what it worked out need not work it out anew in every step."""
    machine, model = Machine(noise=0.05), CostModel(TRUTH)
    changes = []
    for i in range(400):
        before = model.now
        assert model.observe(machine.any_step()) is (model.now is not before)
        changes += [i] if model.now is not before else []
    assert len(changes) <= 400 / 16
    quiet, known = Machine(noise=0.0), CostModel(TRUTH)
    for _ in range(100):
        assert not known.observe(quiet.any_step())


SEEN = st.builds(
    lambda seconds, rows, prefill, texts, context, drafted, levels, owed: StepSeen(
        0.0,
        seconds,
        rows + prefill,
        prefill,
        0,
        texts,
        context,
        texts,
        (Drafting("eagle", seconds * drafted, texts, levels, texts * levels, owed),) if levels else (),
    ),
    st.floats(0.0, 1e4),
    st.integers(1, 3000),
    st.sampled_from([0, 0, 0, 7]),
    st.integers(0, 64),
    st.integers(0, 10**6),
    st.floats(0.0, 1.0),
    st.integers(0, 8),
    st.integers(0, 3000),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(SEEN, max_size=60), st.sampled_from([(), (1, 2, 4, 8, 20)]))
def test_no_sequence_of_steps_makes_a_curve_that_falls_or_a_cost_below_nothing(
    steps: list[StepSeen], sizes: tuple[int, ...]
) -> None:
    model = CostModel(replace(TRUTH, sizes=sizes))
    for step in steps:
        model.observe(step)
    table = model.now.table(2000)
    assert np.isfinite(table).all()
    assert (np.diff(table) >= 0.0).all()
    assert table[0] > 0.0
    draft = model.now.draft("eagle")
    assert min(model.now.key, model.now.sequence, draft.level, draft.fixed, draft.node, draft.owed) >= 0.0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(0.1, 10.0)), min_size=1, max_size=8))
def test_the_rising_fit_is_the_nearest_that_rises(points: list[tuple[float, float]]) -> None:
    """By the formula of the least of the greatest means."""
    values, weights = np.array(points).T
    sums, masses = np.cumsum([0.0, *(values * weights)]), np.cumsum([0.0, *weights])
    n = range(len(values))
    want = [
        max(
            min((sums[b + 1] - sums[a]) / (masses[b + 1] - masses[a]) for b in n if b >= i)
            for a in n
            if a <= i
        )
        for i in n
    ]
    assert rising(values, weights) == pytest.approx(want)
