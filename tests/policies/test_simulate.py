"""The simulation: time, texts and batch are what they say."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from engine import scheduler
from policies.base import LoadView, Option, RequestView
from policies.controller import Controller
from policies.cost import DraftCost, StepCosts
from policies.settings import LoadSettings, PolicySettings
from policies.simulate import (
    Acceptance,
    Adaptive,
    Fixed,
    Jitter,
    Machine,
    Table,
    Texts,
    Trace,
    Traits,
    machine,
    mistaken,
    simulate,
)

K_MAX = 4
COSTS = StepCosts(
    ((1, 1.0), (8, 1.7), (16, 3.0)), {"draft": DraftCost(0.1, 0.05, 0.01)}, key=1e-3, sequence=0.02
)
ALIKE = Acceptance()
MACHINE = Machine(COSTS, "draft", prompt_key=1e-4, max_running=4, max_batch_tokens=32, rows_beside_decodes=8)


def trace_of(*requests, classes=("all",)):
    """(arrival, prompt, answer) each."""
    arrival, context, generated = (np.array(column) for column in zip(*requests, strict=True))
    return Trace(arrival.astype(float), context, generated, np.zeros(len(arrival), np.int64), classes)


def random_trace(count, seed=0, gap=2.0):
    rng = np.random.default_rng(seed)
    arrivals = np.concatenate([[0.0], rng.exponential(gap, count - 1).cumsum()])
    return trace_of(*zip(arrivals, rng.integers(1, 60, count), rng.integers(1, 30, count), strict=True))


def texts_of(trace, acceptance=ALIKE, seed=0):
    return Texts(acceptance, trace.classes, trace.kind, K_MAX, seed)


def played(contender, trace, acceptance=ALIKE, host=MACHINE, **more):
    return simulate(trace, host, texts_of(trace, acceptance), contender, **more)


class Watched(Fixed):
    """A fixed length whose loads, batches and steps are kept."""

    idle = False

    def __init__(self, k):
        super().__init__("watched", k, MACHINE.max_running)
        self.idle = False
        self.loads, self.batches, self.steps, self.shown, self.gone = [], [], [], [], []

    def lengths(self, load, batch):
        self.loads.append(load)
        self.batches.append(batch.requests.tolist())
        return super().lengths(load, batch)

    def observe(self, examined, accepted, step):
        self.shown.append((examined.tolist(), accepted.tolist()))
        self.steps.append(step)

    def forget(self, requests):
        self.gone += requests


def test_one_request_takes_the_time_of_its_steps():
    """A prompt of 40 rows in two chunks, then a row for each token, each attending to one more."""
    outcome = played(Fixed("off", 0, 4), trace_of((0, 40, 4)))
    table = COSTS.table(32)
    first = table[31] + table[9] + 1e-4 * 40 * 41 / 2
    rounds = [table[1] + 0.02 + 1e-3 * (41 + place) for place in range(3)]
    assert outcome.first_token_mean == pytest.approx(first)
    assert outcome.seconds == pytest.approx(first + sum(rounds))
    assert outcome.inter_token_mean == pytest.approx(np.mean(rounds))
    assert outcome.inter_token_p99 == pytest.approx(max(rounds))
    assert (outcome.tokens, outcome.steps, outcome.levels) == (4, 5, {0: 3})


def test_a_perfect_draft_saves_rounds_and_costs_its_rows_and_passes():
    """Acceptance 1: the three tokens after the first come in one round of a draft of three, whose last is cut off."""
    sure = Acceptance(other=Traits(1.0, 0.0, 1.0))
    outcome = played(Watched(3), trace_of((0, 10, 4)), sure)
    table = COSTS.table(32)
    first = table[10] + 1e-4 * 55
    assert outcome.seconds == pytest.approx(first + table[4] + 0.02 + 1e-3 * 11 + 0.05 + 3 * 0.1 + 3 * 0.01)
    assert (outcome.drafted, outcome.accepted, outcome.tokens) == (3, 3, 4)


@pytest.mark.parametrize("gap", [0.0, 2.0, 40.0])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_jumping_over_plain_rounds_changes_nothing(gap, noise):
    trace = random_trace(60, gap=gap)
    jumped = played(Fixed("off", 0, 4), trace, jitter=Jitter(noise))
    stepped = played(Watched(0), trace, jitter=Jitter(noise))
    for name in ("seconds", "inter_token_mean", "inter_token_p99", "first_token_mean", "first_token_p99"):
        assert getattr(jumped, name) == pytest.approx(getattr(stepped, name)), name
    assert (jumped.steps, jumped.levels, jumped.tokens) == (stepped.steps, stepped.levels, stepped.tokens)


def test_all_tokens_are_written_and_everyone_leaves_once():
    trace, watched = random_trace(80), Watched(3)
    outcome = played(watched, trace)
    assert outcome.tokens == trace.tokens
    assert outcome.requests == len(trace)
    assert sorted(watched.gone) == [i for i, length in enumerate(trace.generated) if length > 1]
    assert sum(step.committed for step in watched.steps) == trace.tokens - len(trace)


def test_first_come_is_first_served_and_no_more_run_than_may():
    watched = Watched(2)
    played(watched, random_trace(80, gap=0.1))
    assert max(load.running for load in watched.loads) == MACHINE.max_running
    assert all(load.waiting == 0 or load.running == MACHINE.max_running for load in watched.loads)
    begun = list(dict.fromkeys(request for batch in watched.batches for request in batch))
    assert all(earlier < later + MACHINE.max_running for earlier, later in pairwise(begun))


def test_steps_are_told_as_the_engine_tells_them():
    watched = Watched(2)
    outcome = played(watched, random_trace(40))
    assert sum(step.drafting[0].tokens for step in watched.steps) == outcome.drafted
    for step, (examined, accepted), batch in zip(watched.steps, watched.shown, watched.batches, strict=True):
        assert step.sequences == len(batch)
        assert step.rows == 3 * len(batch) + step.prefill_rows
        assert step.prefill_rows <= MACHINE.rows_beside_decodes
        assert all(e == min(a + 1, 2) for e, a in zip(examined, accepted, strict=True))
    assert all(earlier.now < later.now for earlier, later in pairwise(watched.steps))


def test_prompts_get_the_rows_that_the_scheduler_gives_them():
    """The constants are the engine's own, and rows that attend to much are dearer beside others that decode."""
    assert machine._ATTENTION_DOUBLES == scheduler._ATTENTION_DOUBLES
    assert machine._LEAST_SHARE == scheduler._LEAST_SHARE
    beside = MACHINE.prompt_rows(decoding=2)
    assert [beside.take(1000, 100), beside.take(0, 100)] == [4, 0]
    alone = MACHINE.prompt_rows(decoding=0)
    assert [alone.take(1000, 20), alone.take(0, 100), alone.take(0, 1)] == [20, 12, 0]
    assert alone.attended == 20 * 1000 + 210 + 78


def test_a_machine_that_pads_says_so():
    """A step of rows between two captured sizes costs the larger one, and is told with its padding."""
    padded = replace(MACHINE, costs=replace(COSTS, sizes=(1, 2, 8, 16)))
    watched = Watched(2)
    played(watched, trace_of((0, 5, 9)), host=padded)
    assert {(step.rows, step.padding) for step in watched.steps} == {(8, 5)}
    assert watched.steps[0].seconds > padded.costs.table(8)[8] > COSTS.table(8)[3]


def test_texts_are_the_same_whatever_is_drafted():
    """A token is accepted at a place or not: a longer draft accepts what a shorter one does, and perhaps more."""
    trace = random_trace(500)
    texts = texts_of(trace)
    requests, place = np.arange(500), np.full(500, 7)
    rates = texts.rates(requests, np.zeros(500, np.int64))
    short = texts.accepted(requests, place, rates, np.full(500, 2), 0.0)
    long = texts.accepted(requests, place, rates, np.full(500, 4), 0.0)
    assert (short == np.minimum(long, 2)).all()
    assert (long > 2).any()


def test_acceptance_is_that_of_its_class():
    """Means by position over many requests and places, and the spread between requests."""
    trace = trace_of(*[(0, 1, 1)] * 20_000)
    texts = texts_of(trace, Acceptance({"all": Traits(0.6, 0.2, 0.9)}))
    requests = np.arange(len(trace))
    rates = texts.rates(requests, np.zeros(len(trace), np.int64))
    assert rates.mean(axis=0) == pytest.approx(0.6 * 0.9 ** np.arange(K_MAX), abs=0.01)
    assert rates[:, 0].std() == pytest.approx(0.2, abs=0.01)
    accepted = texts.accepted(requests, np.zeros(len(trace), np.int64), rates, np.full(len(trace), 4), 0.0)
    assert (accepted >= 1).mean() == pytest.approx(0.6, abs=0.015)
    assert (accepted >= 2).mean() == pytest.approx((rates[:, 0] * rates[:, 1]).mean(), abs=0.015)


def test_acceptance_switches_and_drifts_when_asked():
    trace = trace_of((0, 1, 1))
    place = np.arange(0, 40, 10)
    texts = texts_of(trace, Acceptance(switch_every=20, drift=0.5))
    stretch = texts.stretch(place)
    rates = texts.rates(np.zeros(4, np.int64), stretch)[:, 0]
    assert stretch.tolist() == [0, 0, 1, 1]
    assert rates[0] == rates[1] != rates[2] == rates[3]
    many, k = np.zeros(4000, np.int64), np.full(4000, 1)
    low, high = (
        texts.accepted(many, np.arange(4000), np.full((4000, K_MAX), 0.5), k, now).mean()
        for now in (2700.0, 900.0)
    )
    assert (low, high) == (0.0, pytest.approx(1.0, abs=0.02))


def test_traces_are_sped_up_dealt_cut_and_repeated():
    trace = trace_of((0, 1, 1), (2, 2, 2), (6, 3, 3), (9, 4, 4))
    assert trace.faster(2).arrival.tolist() == [0, 1, 3, 4.5]
    assert trace.share(2).context.tolist() == [1, 3]
    assert trace.share(2).arrival.tolist() == [0, 6]
    assert trace.first(2).generated.tolist() == [1, 2]
    assert trace.at_once().arrival.tolist() == [0] * 4
    assert trace.repeated(6).arrival.tolist() == [0, 2, 6, 9, 12, 14]
    assert trace.repeated(6).context.tolist() == [1, 2, 3, 4, 1, 2]


def test_the_table_goes_by_the_number_running():
    table = Table("table", LoadSettings(table=((2, 4), (4, 1)), off_above=3, resume_at=2), K_MAX)
    outcome = played(table, trace_of(*[(0, 1, 20), (0, 1, 20), (0, 1, 90), (0, 1, 90)]))
    assert set(outcome.levels) == {0, 4}


def test_the_controller_adapts_to_what_the_texts_are():
    """Where nothing is accepted it drafts little, where all is it drafts far, and it says why."""
    trace, found = random_trace(40, gap=10.0), {}
    for rate in (0.02, 0.98):
        adaptive = Adaptive(
            "adaptive", PolicySettings(k_max=K_MAX), COSTS, Option("draft", K_MAX), ["all"] * 40
        )
        found[rate] = played(adaptive, trace, Acceptance(other=Traits(rate, 0.0, 1.0)))
    levels = {rate: o.drafted / sum(o.levels.values()) for rate, o in found.items()}
    assert levels[0.02] < 0.5
    assert levels[0.98] > 2
    assert "low_acceptance" in found[0.02].reasons
    assert sum(found[0.98].reasons.values()) == sum(found[0.98].levels.values())


@pytest.mark.parametrize("bound", [None, 25.0])
def test_drafts_beside_a_long_prompt_are_as_long_as_in_other_steps(bound):
    """A prompt is computed in any case. Where a row costs the same as elsewhere, so should a draft be chosen: reckoned
    over the whole step, everything would look cheap beside the prompt. The latency bound still counts all of the step.
    """
    costs = StepCosts(((1, 1.0), (2, 1.03)), {"draft": DraftCost(0.1)})
    views = [
        RequestView(str(i), "all", "", 100, 10, True, None, options=(Option("draft", 8),)) for i in range(12)
    ]
    rules = PolicySettings(kind="goodput", prior=0.6)
    if bound is not None:
        rules = replace(rules, objective="latency", latency_ms=bound * 1000)

    def lengths(prefill_rows):
        load = LoadView(12, 0, 1.0, prefill_rows=prefill_rows)
        return [decision.k for decision in Controller(rules, costs).decide(load, views)]

    alone = lengths(0)
    assert 0 < max(alone) < 8
    assert lengths(400) == alone
    assert max(lengths(1000)) == (0 if bound else max(alone))


def test_mistaken_costs_are_wrong_by_no_more_than_told_and_still_rise():
    wrong = mistaken(COSTS, 0.3, seed=1)
    ratios = [was / is_ for (_, was), (_, is_) in zip(wrong.steps, COSTS.steps, strict=True)]
    assert all(0.7 <= ratio <= 1.3 for ratio in ratios)
    assert len(set(ratios)) > 1
    assert (np.diff(wrong.table(40)) >= 0).all()
