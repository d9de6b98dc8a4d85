"""Probes keep the evidence fresh where k = 0 would yield none."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.base import LoadView, Observation, Option, Reason, RequestView
from policies.controller import Controller
from policies.settings import LoadSettings, PolicySettings
from tests.policies.steps import A_STEP

ewma = partial(PolicySettings, kind="ewma", half_life=16.0)

OFF_FOR_GOOD = LoadSettings(table=((100, 8),), off_above=0, resume_at=0)
NEVER_OFF = LoadSettings(table=((1000, 8),), off_above=1000)


def view(name, *, remaining=1000, speculate=True, fixed_k=None):
    return RequestView(name, "chat", "t", remaining, 100, speculate, fixed_k, options=(Option("ngram", 63),))


def hopeless(every, load=NEVER_OFF, **settings):
    """A controller whose class has been seen to fail."""
    controller = Controller(ewma(probe_every=every, load=load, row_cost=0.06, **settings))
    controller.observe([Observation("old", "chat", "ngram", 4, 1, 0)] * 60, A_STEP)
    controller.forget("old")
    return controller


def step(controller, requests, *, accept=False):
    """One step in which every draft is rejected, or accepted; returns the decisions by request."""
    decisions = controller.decide(LoadView(len(requests), 0, 0.5), requests)
    controller.observe(
        [
            Observation(request.request, "chat", "ngram", d.k, d.k if accept else min(d.k, 1), d.k * accept)
            for request, d in zip(requests, decisions, strict=True)
        ],
        A_STEP,
    )
    return {request.request: d for request, d in zip(requests, decisions, strict=True)}


def probed(decisions):
    return [name for name, decision in decisions.items() if decision.reason is Reason.PROBE]


@given(st.integers(1, 12), st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=100))
def test_every_request_at_k_0_is_probed_in_any_probe_every_of_its_rounds(every, batches):
    """Whoever shares the batch, whenever it comes and goes."""
    controller = hopeless(every)
    rounds = {name: [] for name in "012345"}
    for batch in batches:
        for name, decision in step(controller, [view(str(member)) for member in batch]).items():
            rounds[name].append(decision.reason)
    for reasons in rounds.values():
        windows = [reasons[at : at + every] for at in range(len(reasons) - every + 1)]
        assert all(window.count(Reason.PROBE) == 1 for window in windows)
        assert set(reasons) <= {Reason.PROBE, Reason.LOW_ACCEPTANCE}


def test_requests_too_short_for_a_probe_of_their_own_share_the_budget():
    """256 rounds in requests of 4 rounds still give one probe in 32, by which their class can recover."""
    controller = hopeless(32)
    probes = 0
    for number in range(64):
        for _ in range(4):
            probes += len(probed(step(controller, [view(f"r{number}")])))
        controller.forget(f"r{number}")
    assert probes == 8


def test_requests_that_arrive_together_are_not_probed_together():
    controller = hopeless(8)
    batch = [view(str(number)) for number in range(16)]
    assert [len(probed(step(controller, batch))) for _ in range(24)] == [2] * 24


def test_a_request_whose_draft_becomes_good_comes_back():
    """Each accepted probe raises the estimate, until drafting is worth its cost again."""
    controller = hopeless(4)
    request = [view("r")]
    reasons = [step(controller, request, accept=True)["r"].reason for _ in range(40)]
    assert reasons[-1] is Reason.ACCEPTANCE


def test_with_drafting_off_by_load_one_request_in_probe_every_steps_is_probed_each_in_turn():
    controller = Controller(ewma(probe_every=4, load=OFF_FOR_GOOD))
    batch = [view(str(number)) for number in range(5)]
    probes = [probed(step(controller, batch)) for _ in range(4 * 10)]
    assert [len(names) for names in probes] == [0, 0, 0, 1] * 10
    assert [names[0] for names in probes if names] == [*"01234"] * 2


def test_newcomers_starve_nobody_of_a_probe():
    """With a new request in every step, those that were there first have still all been probed first."""
    controller = Controller(ewma(probe_every=2, load=OFF_FOR_GOOD))
    batch = [view(f"old {number}") for number in range(4)]
    seen = []
    for number in range(8):
        batch.insert(0, view(f"new {number}"))
        seen += probed(step(controller, batch))
    assert sorted(seen) == sorted(["new 0", "old 0", "old 1", "old 2"])
    assert probed(step(controller, batch)) == []
    assert probed(step(controller, batch)) == ["old 3"]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=8), st.integers(1, 6))
def test_a_probe_under_load_needs_room_and_passes_on_to_who_has_it(remaining, every):
    controller = Controller(ewma(probe_every=every, load=OFF_FOR_GOOD, probe_k=4))
    batch = [view(str(number), remaining=left) for number, left in enumerate(remaining)]
    last = [step(controller, batch) for _ in range(every)][-1]
    assert len(probed(last)) == any(left > 1 for left in remaining)
    assert all(last[request.request].k <= request.remaining_tokens - 1 for request in batch)


def test_a_probe_stays_under_the_cap_of_a_shrunk_load():
    controller = hopeless(1, LoadSettings(table=((100, 2),)), probe_k=4)
    assert step(controller, [view("r")])["r"].k == 2


def test_a_probe_that_finds_no_room_waits_for_it():
    controller = hopeless(3)
    reasons = [step(controller, [view("r", remaining=1)])["r"].reason for _ in range(5)]
    assert reasons == [Reason.LOW_ACCEPTANCE] * 5
    assert step(controller, [view("r", remaining=2)])["r"].reason is Reason.PROBE


@pytest.mark.parametrize("load", [OFF_FOR_GOOD, NEVER_OFF])
def test_who_asked_for_no_draft_is_never_probed(load):
    controller = hopeless(2, load)
    batch = [view("plain", speculate=False), view("zero", fixed_k=0)]
    assert all(probed(step(controller, batch)) == [] for _ in range(12))


def test_nothing_is_probed_when_drafting_is_off_by_configuration():
    controller = hopeless(2, OFF_FOR_GOOD, kind="off")
    assert all(probed(step(controller, [view("r")])) == [] for _ in range(12))


def test_the_first_probe_under_load_comes_a_full_interval_after_drafting_went_off():
    settings = LoadSettings(table=((2, 8),), off_above=2, resume_at=2, dwell_steps=0)
    controller = Controller(ewma(probe_every=3, load=settings))
    busy, calm = [view(name) for name in "abc"], [view("a")]
    pattern = [busy, busy, calm, busy, busy, busy]
    assert [len(probed(step(controller, batch))) for batch in pattern] == [0, 0, 0, 0, 0, 1]
