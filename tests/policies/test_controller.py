"""Where k is chosen: the whole of it."""

import random
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from policies.base import Decision, LoadState, LoadView, Observation, Option, Reason, RequestView
from policies.controller import Controller
from policies.settings import LoadSettings, PolicySettings
from tests.policies.steps import A_STEP

ewma = partial(PolicySettings, kind="ewma")

ROOMY = LoadSettings(table=((1000, 16),), off_above=1000)


def view(name="r", *, traffic_class="chat", remaining=1000, speculate=True, fixed_k=None, forced=0):
    return RequestView(name, traffic_class, "t", remaining, 100, speculate, fixed_k, forced, (OPTION,))


OPTION = Option("ngram", 63)


def rounds(count, accepted, *, request="r", traffic_class="chat"):
    """Rounds of 4 drafted tokens each."""
    return [Observation(request, traffic_class, "ngram", 4, min(accepted + 1, 4), accepted)] * count


def decide(controller, *requests, running=1):
    return controller.decide(LoadView(running, 0, 0.5), requests)


def only(controller, request, running=1):
    (decision,) = decide(controller, request, running=running)
    return decision


@pytest.mark.parametrize(
    ("rules", "request_view", "running", "expected"),
    [
        ({}, view(), 1, Decision(3, Reason.CLASS_PRIOR, "ngram at class acceptance 0.60: k = 3 brings 1.75")),
        ({"prior": 0.02}, view(), 1, (0, Reason.LOW_ACCEPTANCE)),
        ({}, view(speculate=False), 1, (0, Reason.REQUEST_OFF)),
        ({}, view(fixed_k=3), 1, Decision(3, Reason.REQUEST_FIXED, "the request asked for k = 3")),
        (
            {},
            view(fixed_k=9),
            1,
            Decision(8, Reason.REQUEST_FIXED, "the request asked for k = 9, k_max is 8"),
        ),
        ({}, view(fixed_k=3), 9, Decision(1, Reason.LOAD_CAP, "load cap: 9 running > 8")),
        ({}, view(fixed_k=3), 13, Decision(0, Reason.LOAD_OFF, "load off: 13 running > 12")),
        ({"kind": "static"}, view(), 1, (4, Reason.STATIC)),
        ({"kind": "static"}, view(), 7, (3, Reason.LOAD_CAP)),
        ({"kind": "static", "static_k": 0}, view(), 1, (0, Reason.STATIC)),
        ({"kind": "off"}, view(), 1, Decision(0, Reason.DISABLED, 'disabled: kind = "off" by configuration')),
        ({"kind": "off"}, view(fixed_k=3), 1, (0, Reason.DISABLED)),
        ({"k_max": 0}, view(fixed_k=3), 1, (0, Reason.DISABLED)),
        ({"kind": "off"}, view(speculate=False), 1, (0, Reason.REQUEST_OFF)),
        (
            {},
            view(remaining=3),
            1,
            Decision(2, Reason.NO_ROOM, "no room: 3 tokens remain, one is the target's own"),
        ),
        ({}, view(remaining=1), 1, (0, Reason.NO_ROOM)),
        ({}, view(remaining=3), 9, (1, Reason.LOAD_CAP)),
    ],
)
def test_the_reason_names_what_settled_k_last(rules, request_view, running, expected):
    decision = only(
        Controller(ewma(**{"draft_cost": 0.02, "row_cost": 0.06, **rules})), request_view, running
    )
    assert expected in {decision._replace(option=None), (decision.k, decision.reason)}


def test_each_request_of_a_batch_gets_the_k_that_its_own_acceptance_earns():
    controller = Controller(ewma(load=ROOMY))
    bad = [*rounds(10, 1, request="bad"), *rounds(20, 0, request="bad")]
    controller.observe([*rounds(20, 4, request="good"), *bad], A_STEP)
    good, bad, new = decide(controller, view("good"), view("bad"), view("new"))
    assert (good.k, good.reason) == (8, Reason.ACCEPTANCE)
    assert bad.k < new.k <= good.k
    assert new.reason is Reason.CLASS_PRIOR


def test_a_request_of_a_hopeless_draft_ends_at_k_0():
    controller = Controller(ewma())
    controller.observe(rounds(60, 0), A_STEP)
    decision = only(controller, view())
    assert (decision.k, decision.reason) == (0, Reason.LOW_ACCEPTANCE)
    assert decision.text.endswith("a draft costs more than it brings")


def test_learning_while_choosing_ends_near_the_best_k():
    """The loop closes: k follows the estimate, and evidence follows k."""
    rng = random.Random(5)
    controller = Controller(ewma(half_life=200.0, load=ROOMY))
    chosen = []
    for _ in range(600):
        k = only(controller, view()).k
        accepted = next((j for j in range(k) if rng.random() > 0.8), k)
        controller.observe([Observation("r", "chat", "ngram", k, min(accepted + 1, k), accepted)], A_STEP)
        chosen.append(k)
    assert set(chosen[300:]) <= {6, 7, 8}
    assert controller.class_acceptance()[0].acceptance == pytest.approx(0.8, abs=0.04)


def test_a_load_ramp_of_1_to_48_to_1_shrinks_k_switches_it_off_and_brings_it_back():
    controller = Controller(ewma(probe_every=1000))
    controller.observe(rounds(20, 4), A_STEP)
    states, ks = [], []
    for running in [*range(1, 49), *range(48, 0, -1), *[1] * 40]:
        ks.append(only(controller, view(), running).k)
        states.append(controller.load_state)
    turns = [states[0]] + [after for before, after in pairwise(states) if before != after]
    assert turns == [LoadState.FULL, LoadState.SHRUNK, LoadState.OFF, LoadState.SHRUNK, LoadState.FULL]
    assert ks[0] == ks[-1] == 8
    assert ks[:48] == sorted(ks[:48], reverse=True)
    assert ks[47] == 0


def test_a_reload_keeps_what_was_learned():
    controller = Controller(ewma())
    controller.observe(rounds(20, 4), A_STEP)
    learned = controller.class_acceptance()
    controller.configure(ewma(k_max=3))
    assert controller.class_acceptance() == learned
    assert (only(controller, view()).k, only(controller, view()).reason) == (3, Reason.ACCEPTANCE)


def test_a_reload_keeps_the_load_state_until_its_dwell_is_over():
    controller = Controller(ewma(draft_cost=0.02, row_cost=0.06))
    only(controller, view(), running=40)
    controller.configure(ewma(load=ROOMY, draft_cost=0.02, row_cost=0.06))
    ks = [only(controller, view()).k for _ in range(ROOMY.dwell_steps)]
    assert ks == [0] * (ROOMY.dwell_steps - 1) + [3]


def test_a_reload_reaches_every_part():
    controller = Controller(ewma(draft_cost=0.02, row_cost=0.06, load=ROOMY))
    assert only(controller, view("a")).k == 3
    controller.configure(ewma(draft_cost=0.02, row_cost=0.06, prior=0.95, load=ROOMY))
    assert only(controller, view("b")).k == 8
    controller.configure(
        ewma(draft_cost=0.02, row_cost=0.06, prior=0.95, load=LoadSettings(table=((1000, 2),)))
    )
    assert only(controller, view("c")).k == 2
    controller.configure(ewma(draft_cost=0.02, row_cost=0.06, prior=0.01, probe_every=1))
    assert only(controller, view("d")).reason is Reason.PROBE


def test_a_kind_that_does_not_exist_is_refused_by_name_and_changes_nothing():
    controller = Controller(ewma())
    before = only(controller, view())
    with pytest.raises(ValueError, match='no policy kind "magic": choose one of goodput, ewma, static, off'):
        controller.configure(replace(ewma(), kind="magic", k_max=1))
    assert only(controller, view()) == before


def test_a_request_that_ended_leaves_nothing_but_what_its_class_learned():
    controller = Controller(ewma())
    controller.observe(rounds(20, 4), A_STEP)
    assert only(controller, view()).reason is Reason.ACCEPTANCE
    controller.forget("r")
    controller.forget("never seen")
    assert only(controller, view()).reason is Reason.CLASS_PRIOR
    (learned,) = controller.class_acceptance()
    assert (learned.traffic_class, learned.proposer) == ("chat", "ngram")
    assert learned.acceptance > 0.9
    assert learned.examined > 50


def test_nothing_is_kept_of_requests_that_have_ended():
    controller = Controller(ewma())
    for number in range(100):
        only(controller, view(f"r{number}"))
        controller.observe(rounds(1, 2, request=f"r{number}"), A_STEP)
        controller.forget(f"r{number}")
    assert not controller._estimates._requests
    assert not controller._probes._history


@pytest.mark.parametrize(
    ("rules", "request_view", "running", "expected"),
    [
        ({}, view(forced=5), 1, (5, Reason.FORCED)),
        ({"prior": 0.02}, view(forced=5), 1, (5, Reason.FORCED)),
        ({"load": LoadSettings(off_above=4)}, view(forced=5), 9, (5, Reason.FORCED)),
        ({"k_max": 3}, view(forced=5), 1, (3, Reason.FORCED)),
        ({}, view(forced=5, remaining=3), 1, (2, Reason.FORCED)),
        ({}, view(forced=5, fixed_k=2), 1, (2, Reason.FORCED)),
        ({}, view(forced=5, fixed_k=0), 1, (0, Reason.REQUEST_FIXED)),
        ({}, view(forced=5, speculate=False), 1, (0, Reason.REQUEST_OFF)),
        ({"kind": "off"}, view(forced=5), 1, (0, Reason.DISABLED)),
    ],
)
def test_forced_tokens_are_drafted_whatever_acceptance_and_load_say(rules, request_view, running, expected):
    """They are always kept. Only who wants plain decoding, the lengths allowed and the room left stand against it."""
    decision = only(Controller(ewma(**rules)), request_view, running=running)
    assert (decision.k, decision.reason) == expected


def test_nothing_is_learned_from_forced_tokens():
    """Neither that all is accepted, nor that the request has drafted: its next probe comes when it would have."""
    controller = Controller(ewma(prior=0.01, probe_every=3))
    kinds = []
    for step in range(8):
        kinds.append(only(controller, view(forced=4 if step % 2 else 0)).reason)
        controller.observe([Observation("r", "chat", "grammar", 4, 4, 4)], A_STEP)
    assert controller.class_acceptance() == []
    assert kinds[::2] == [Reason.LOW_ACCEPTANCE, Reason.LOW_ACCEPTANCE, Reason.PROBE, Reason.LOW_ACCEPTANCE]


def test_before_the_first_step_the_load_allows_everything():
    assert Controller(ewma()).load_state is LoadState.FULL
