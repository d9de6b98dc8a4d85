"""The whole loop: what is chosen, what that shows, what follows from it. Against the best that one k could do."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.base import LoadView, Option, Reason, RequestView
from policies.controller import Controller
from policies.cost import DraftCost, StepCosts
from policies.exploring import PURSE, SHARE
from policies.load import UNCAPPED, most_rows
from policies.market import Market
from policies.settings import LoadSettings, PolicySettings, TenantSettings
from policies.standing import DWELL
from tests.policies.closed_loop import EAGLE, HOST, TWO, Loop, best_static

MEASURES = frozenset({Reason.PROBE, Reason.PLAIN, Reason.SLOWER})


def speed(requests, rates, steps=300, **rest):
    """Tokens a second after a warm-up, and of the best single k."""
    loop = Loop(requests, lambda i, step: {"eagle": rates[i]}, **rest)
    loop.speed(100)
    return loop.speed(steps), best_static(requests, rates)[0]


@pytest.mark.parametrize("acceptance", [0.3, 0.7])
def test_where_all_requests_are_alike_it_is_near_the_best_static_k_at_every_load(acceptance):
    """On this host's costs, with steps that vary by a twentieth."""
    shares = []
    for requests in (1, 2, 4, 8, 16, 32, 48):
        reached, best = speed(requests, [acceptance] * requests, noise=0.05)
        shares.append(reached / best)
    assert min(shares) > 0.95
    assert np.mean(shares) > 0.98


@pytest.mark.parametrize("requests", [4, 8, 16])
def test_where_requests_differ_it_beats_every_static_k(requests):
    reached, best = speed(requests, [0.9 if i % 2 else 0.2 for i in range(requests)], noise=0.05)
    assert reached > 1.1 * best


@pytest.mark.parametrize("requests", [1, 4, 16, 48])
def test_a_draft_that_cannot_win_costs_under_a_percent(requests):
    """Probes and looks at it included."""
    reached, _ = speed(requests, [0.02] * requests, steps=500)
    assert reached > 0.99 * requests / HOST.step(requests)


def test_wrong_costs_and_acceptance_that_switches_cost_little():
    """Test that with costs believed 30 % off each way, and every request's acceptance switching every 200 tokens, less
    than 5 % is lost against the best static k in hindsight.
    """
    rng = np.random.default_rng(3)
    for requests in (1, 8):
        wrong = tuple((rows, cost * rng.uniform(0.7, 1.3)) for rows, cost in HOST.steps)
        believed = StepCosts.measured(wrong, {"eagle": HOST.draft("eagle").times(rng.uniform(0.7, 1.3))})
        loop = Loop(requests, lambda i, step: {"eagle": _switching(i, step)}, believed=believed, noise=0.1)
        loop.speed(80)
        reached = loop.speed(480)
        tokens, seconds = np.zeros(9), np.zeros(9)
        for step in (0, 80):
            rates = np.array([_switching(i, step) for i in range(requests)])
            for k in range(9):
                tokens[k] += requests + sum((rates**j).sum() for j in range(1, k + 1))
                draft = HOST.draft("eagle")
                seconds[k] += HOST.step(requests * (1 + k)) + (k > 0) * draft.fixed + k * draft.level
        assert reached > 0.95 * (tokens / seconds).max()


def _switching(i, step):
    return (0.9, 0.3)[(step // 80 + i) % 2]


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 4), st.integers(0, 1 << 20))
def test_no_switch_is_taken_back_within_its_dwell(requests, seed):
    """Test that with the same offers in every step no request leaves a proposer, or no draft at all, and returns to it
    within DWELL rounds, however acceptance moves. Probes and looks are no switches.
    """
    rates = np.random.default_rng(seed).uniform(0, 1, (40, requests, 2))
    loop = Loop(
        requests,
        lambda i, step: dict(zip(("ngram", "eagle"), rates[step // 3 % 40][i], strict=True)),
        options=lambda i, step, rng: TWO,
        seed=seed,
    )
    standing = loop.controller._adaptive._standing
    had = []
    for _ in range(100):
        loop.step()
        had.append(standing.arm[standing.rows(tuple(f"r{i}" for i in range(requests)))].tolist())
    for arms in zip(*had, strict=True):
        switches = [step for step, (before, now) in enumerate(pairwise(arms), 1) if before != now]
        for first, second in pairwise(switches):
            assert arms[second] != arms[first - 1] or second - first >= DWELL


def test_every_request_without_a_draft_is_probed_and_probes_stay_within_their_share():
    requests = 8
    loop = Loop(requests, lambda i, step: {"eagle": 0.02})
    loop.speed(200)
    start = loop.steps
    loop.speed(1500)
    probed = defaultdict(list)
    for step in range(start, loop.steps):
        for i, reason in enumerate(loop.reasons[step]):
            if reason is Reason.PROBE:
                probed[i].append(step)
    draft = HOST.draft("eagle")
    probe = HOST.step(requests + 1) - HOST.step(requests) + draft.fixed + draft.level
    between = requests * probe / (SHARE * HOST.step(requests))
    assert sorted(probed) == list(range(requests))
    gaps = [
        b - a for steps in probed.values() for a, b in zip([start, *steps], [*steps, loop.steps], strict=True)
    ]
    assert max(gaps) < 1.5 * max(between, 32)
    count = sum(map(len, probed.values()))
    assert count * probe < SHARE * 1500 * HOST.step(requests) * 1.5 + PURSE * HOST.step(requests)


def waits(loop, start):
    """By request: rounds from one of its probes to the next, the first and the last stretch included."""
    probed = defaultdict(lambda: [start])
    for step in range(start, loop.steps):
        for i, reason in enumerate(loop.reasons[step]):
            if reason is Reason.PROBE:
                probed[loop.name(i, step)].append(step)
    return {name: [b - a for a, b in pairwise([*at, loop.steps])] for name, at in probed.items()}


def test_newcomers_starve_nobody_of_a_probe():
    """Test that with half of the batch renewed every 40 steps, those who stay are each probed as soon as the share of
    the time pays for a probe of everyone.
    """
    requests, stay = 8, 4
    loop = Loop(
        requests,
        lambda i, step: {"eagle": 0.02},
        name=lambda i, step: f"r{i}" if i < stay else f"r{i} {(step + 10 * i) // 40}",
    )
    loop.speed(200)
    start = loop.steps
    loop.speed(1500)
    draft = HOST.draft("eagle")
    probe = HOST.step(requests + 1) - HOST.step(requests) + draft.fixed + draft.level
    found = waits(loop, start)
    assert {f"r{i}" for i in range(stay)} <= set(found)
    longest = max(max(found[f"r{i}"]) for i in range(stay))
    assert longest < 1.5 * requests * probe / (SHARE * HOST.step(requests))


def test_a_probe_that_is_dear_is_saved_for():
    """Test that a text at k = 0 whose draft has much to read first is probed beside others that draft, and that these
    are looked at all the same: probes and looks have half of the share each.
    """
    reading = replace(HOST, drafts={"eagle": replace(HOST.draft("eagle"), owed=0.003 * HOST.plain)})
    debt = 400
    trees = {
        owed: tuple(Option("eagle", 8, width=width, owed=owed) for width in (1, 2)) for owed in (0, debt)
    }
    loop = Loop(
        4,
        lambda i, step: {"eagle": 0.8 if i else 0.02},
        costs=reading,
        believed=reading,
        options=lambda i, step, rng: trees[0 if i else debt],
    )
    loop.speed(300)
    start = loop.steps
    loop.speed(1500)
    found = waits(loop, start)
    cost = (HOST.step(5) - HOST.step(4) + reading.draft("eagle").of(1, 1, debt)) / HOST.step(4)
    assert max(found["r0"]) < 1.2 * cost / (SHARE / 2)
    assert len(found) > 1


def test_drafts_that_requests_ask_for_are_not_taken_for_plain_steps():
    """Test that steps in which all name their k, and gain much by it, do not make later drafts seem slow."""
    loop = Loop(
        4,
        lambda i, step: {"eagle": 0.97 if step < 100 else 0.6},
        asks=lambda i, step: 8 if step < 100 else None,
    )
    loop.speed(300)
    assert MEASURES.isdisjoint(
        reason for of in loop.reasons[100:] for reason in of if reason is not Reason.PROBE
    )


def test_beside_a_request_that_names_its_k_the_others_drafts_are_still_checked():
    """Test that they are compared with steps that have its draft alone, and that drafting goes on thereafter."""
    loop = Loop(4, lambda i, step: {"eagle": 0.8 if i else 0.02}, asks=lambda i, step: None if i else 8)
    loop.speed(700)
    plain = [step for step, of in enumerate(loop.reasons) if Reason.PLAIN in of]
    assert 1 <= len(plain) < 20
    assert all(of[0] is Reason.REQUEST_FIXED for of in loop.reasons)
    assert np.mean([k > 0 for k, _ in loop.chosen[-1]]) == 1.0


def test_other_settings_or_drafts_end_a_rest():
    """Test that after a reload of what is drafted it is measured anew whether that is worth it, and after a reload of
    something else it is not: a rest may last for minutes.
    """
    rules = PolicySettings(draft_cost=0.0, row_cost=0.0)  # which is not so
    loop = Loop(4, lambda i, step: {"eagle": 0.1}, settings=rules)
    controller = loop.controller

    def rested():
        """Whether the next steps have no drafts, and say so, but for probes."""
        loop.speed(8)
        return {reason for of in loop.reasons[-8:] for reason in of} <= {Reason.SLOWER, Reason.PROBE}

    while not rested():
        assert loop.steps < 3000
    controller.configure(rules)
    assert rested()
    controller.configure(replace(rules, tree_nodes=0))
    assert not rested()
    while not rested():
        assert loop.steps < 6000
    controller.recheck()
    assert not rested()


def test_under_load_each_has_its_turn_at_the_one_probe():
    """Test that with drafting off by load one request at a time is probed, never sooner than `probe_every` steps after
    the one before, all in turn, and that they go on when the purse is empty, if more seldom.
    """
    rules = PolicySettings(load=LoadSettings(table=((100, 8),), off_above=2), probe_every=5)
    loop = Loop(4, lambda i, step: {"eagle": 0.9}, settings=rules)
    for _ in range(400):
        loop.step()
    steps = [step for step, reasons in enumerate(loop.reasons) if Reason.PROBE in reasons]
    turns = [[i for i, reason in enumerate(loop.reasons[step]) if reason is Reason.PROBE] for step in steps]
    first = turns[:4]
    assert sorted(first) == [[0], [1], [2], [3]]
    assert turns == [first[place % 4] for place in range(len(turns))]
    gaps = [b - a for a, b in pairwise(steps)]
    assert gaps[:8] == [5] * 8
    assert {gap % 5 for gap in gaps} == {0}
    assert max(gaps) < 60


def test_what_drafts_are_ruled_out_by_load_is_not_looked_up():
    """Test that options are wanted only for the one probe in `probe_every` steps."""
    rules = PolicySettings(load=LoadSettings(table=((100, 8),), off_above=2), probe_every=5)
    loop = Loop(4, lambda i, step: {"eagle": 0.9}, settings=rules)
    wanted = []
    for _ in range(40):
        wanted.append(loop.controller.wants_options)
        loop.step()
    assert wanted[5:].count(True) == 7
    assert {reason for reasons in loop.reasons[5:] for reason in reasons} <= {Reason.LOAD_OFF, Reason.PROBE}


def test_an_account_names_what_would_have_been_next_best():
    loop = Loop(2, lambda i, step: {"ngram": 0.2, "eagle": 0.8}, options=lambda i, step, rng: TWO)
    loop.speed(120)
    found = loop.controller.account(0)
    assert len(found.alternatives) == 2
    assert found.goodput > max(worth for _, _, worth in found.alternatives) * 0.97
    assert found.alternatives[0][2] >= found.alternatives[1][2]
    assert "tokens a second" in found.text
    assert "eagle at acceptance" in found.text


def test_what_settled_a_decision_is_told_with_what_would_have_been_next_best():
    """Test that the clause of a cap, of a probe and of a rest stands before the numbers, and alternatives are there."""
    rules = PolicySettings(tenants=(TenantSettings("t", k_max=1),), probe_every=4)
    loop = Loop(4, lambda i, step: {"ngram": 0.02, "eagle": 0.9 if i else 0.02}, settings=rules)
    loop.options = lambda i, step, rng: TWO
    told = {}
    for _ in range(100):
        for place, decision in enumerate(loop.step()):
            told[decision.reason] = decision.text, loop.controller.account(place)
    for reason in (Reason.TENANT_CAP, Reason.PROBE):
        clause, found = told[reason]
        assert found.text.startswith(f"{clause}, k = 1 brings ")
        assert len(found.alternatives) == 2
        assert found.goodput > 0


@pytest.mark.parametrize("kind", ["ewma", "static"])
def test_kinds_that_choose_for_each_request_alone_tell_what_would_have_been_next_best(kind):
    """Test that it is in tokens a second were all to draft alike, the best first, and without what was chosen."""
    rules = PolicySettings(kind, static_k=2, load=UNCAPPED)
    loop = Loop(2, lambda i, step: {"ngram": 0.2, "eagle": 0.8}, settings=rules)
    loop.options = lambda i, step, rng: TWO
    loop.speed(120)
    found, (k, option) = loop.controller.account(0), loop.chosen[-1][0]
    plain = 2 / HOST.step(2)
    assert len(found.alternatives) == 2
    assert found.alternatives[0][2] >= found.alternatives[1][2]
    assert (option.proposer, k) not in {(name, levels) for name, levels, _ in found.alternatives}
    assert 1.2 * plain < found.goodput < 3 * plain
    assert f", k = {k} brings {found.goodput:.4g} tokens a second, " in found.text


def test_a_bound_on_latency_is_kept_by_what_is_planned():
    """Test that with a limit that a plain step just keeps there is room for no long drafts."""
    free = Loop(4, lambda i, step: {"eagle": 0.9})
    tight = PolicySettings(objective="latency", latency_ms=1e3 * HOST.step(6) / 0.8)
    bound = Loop(4, lambda i, step: {"eagle": 0.9}, settings=tight)
    for loop in (free, bound):
        loop.speed(100)
    deepest = [max(sum(k for k, _ in step) for step in loop.chosen[50:]) for loop in (free, bound)]
    assert deepest[1] < deepest[0] / 2


@pytest.mark.parametrize("rows", [5, 9, 20])
def test_no_step_is_planned_longer_than_its_bound_for_a_probe_or_a_look(rows):
    """Test that what is drafted for what it shows keeps to the bound as well, where drafts fill it and where not."""
    rules = PolicySettings(objective="latency", latency_ms=1e3 * HOST.step(rows), probe_every=4)
    loop = Loop(
        4,
        lambda i, step: dict.fromkeys(("ngram", "eagle"), 0.7 if i else 0.02),
        settings=rules,
        options=lambda i, step, rng: TWO,
    )
    tried = 0
    for _ in range(400):
        before, bound = loop.seconds, loop.controller._load._latency.seconds
        tried += any(decision.reason is Reason.PROBE for decision in loop.step())
        if any(k for k, _ in loop.chosen[-1]):
            assert loop.seconds - before <= 1.01 * bound
    assert tried or rows < 20


def test_requests_that_name_their_k_get_it_beside_those_that_leave_it_to_the_policy():
    controller = Controller(PolicySettings(), HOST)
    views = [
        RequestView(name, "c", "t", 100, 100, name != "plain", k, 0, EAGLE)
        for name, k in (("plain", None), ("two", 2), ("free", None), ("none", 0))
    ]
    found = controller.decide(LoadView(4, 0, 1.0), views)
    assert [decision.reason for decision in found[:2]] == [Reason.REQUEST_OFF, Reason.REQUEST_FIXED]
    assert (found[1].k, found[3].k, found[2].reason) == (2, 0, Reason.CLASS_PRIOR)
    assert found[2].k > 0


@pytest.mark.parametrize("requests", [1, 2, 3, 6])
def test_with_trees_no_step_has_more_rows_than_memory_is_planned_for_and_each_decision_can_be_accounted_for(
    requests,
):
    """Looks included: each of many steps, on a host where rows are cheap, so that all of them are wanted."""
    cheap = StepCosts(((1, 8e-3), (64, 8.4e-3), (512, 20e-3)), {"eagle": DraftCost(0.3e-3, 0.1e-3)})
    trees = tuple(Option("eagle", 16, width=width) for width in (1, 2, 4))
    rules = PolicySettings(kind="goodput")
    loop = Loop(
        requests,
        lambda i, step: {"eagle": 0.8},
        costs=cheap,
        believed=cheap,
        settings=rules,
        options=lambda i, step, rng: trees,
    )
    looks = 0
    for _ in range(200):
        decisions = loop.step()
        assert requests + sum(decision.tokens for decision in decisions) <= most_rows(rules, requests)
        assert all(loop.controller.account(place).goodput > 0 for place in range(requests))
        looks += sum(decision.reason is Reason.PROBE for decision in decisions)
    assert looks > 0


def counted_allocations(monkeypatch):
    """A list that grows by one with each."""
    made = []
    monkeypatch.setattr(
        Market,
        "allocate",
        lambda self, *given, of=Market.allocate: made.append(1) or of(self, *given),
    )
    return made


def test_what_nothing_has_changed_behind_stands(monkeypatch):
    """Test that a decision is made once for the steps between two learnings, and anew whenever offers, requests or load
    are others.
    """
    made = counted_allocations(monkeypatch)
    loop = Loop(1, lambda i, step: {"eagle": 0.9})
    loop.speed(40)
    controller = loop.controller
    made.clear()

    def decided(name, *, prompt=0, k=8):
        load, options = LoadView(1, 0, 1.0, prefill_rows=prompt), (Option("eagle", k),)
        view = RequestView(name, "c0", "t", 10_000, 100, True, None, 0, options)
        before = len(made)
        (decision,) = controller.decide(load, [view])
        assert decision.k > 0
        return decision, len(made) - before

    first, again = decided("a"), decided("a")
    assert (first[1], again) == (1, (first[0], 0))
    assert decided("a", k=3)[1] == 1, "other offers"
    assert decided("b", k=3)[1] == 1, "another request"
    assert decided("b", k=3)[1] == 0
    assert decided("b", k=3, prompt=64)[1] == 1, "another load"
    assert decided("b", k=3)[1] == 1
    controller.configure(PolicySettings())
    assert decided("b", k=3)[1] == 1, "other settings"


def test_no_draft_stands_while_more_is_owed_for_one_and_nothing_else_changes(monkeypatch):
    """Test that a text which does not draft, and so falls behind by a token with each step, is not decided on each
    time: that would cost small steps a few percent. It is when less is owed, or when it could draft further.
    """
    made = counted_allocations(monkeypatch)
    loop = Loop(2, lambda i, step: {"eagle": 0.02})
    loop.speed(60)
    controller = loop.controller

    def decided(owed, *, k=8, names=("r0", "r1")):
        before, options = len(made), (Option("eagle", k, owed=owed),)
        views = [
            RequestView(name, f"c{i}", "t", 10_000, 100, True, None, 0, options)
            for i, name in enumerate(names)
        ]
        decisions = controller.decide(LoadView(2, 0, 1.0), views)
        assert [each.k for each in decisions] == [0, 0]
        return len(made) - before

    assert decided(5, k=7) == 1, "another length"
    assert [decided(owed, k=7) for owed in range(5, 12)] == [0] * 7
    assert decided(3, k=7) == 1, "less is owed"
    assert decided(4, k=7) == 0
    assert decided(4, k=7, names=("r1", "r0")) == 1, "other requests"


def test_what_stands_for_a_text_that_drafts_does_not_while_more_is_owed(monkeypatch):
    """Test that the price of what is to be read first is looked at where somebody drafts."""
    loop = Loop(1, lambda i, step: {"eagle": 0.9})
    loop.speed(40)
    made = counted_allocations(monkeypatch)
    for owed in (0, 1, 2):
        view = RequestView("a", "c0", "t", 10_000, 100, True, None, 0, (Option("eagle", 8, owed=owed),))
        (decision,) = loop.controller.decide(LoadView(1, 0, 1.0), [view])
        assert decision.k > 0
    assert len(made) == 3


def test_a_look_at_another_option_does_not_stand():
    """Test that a draft which is made for what it shows is made once: a class has four steps between two of them."""
    loop = Loop(4, lambda i, step: {"eagle": 0.9, "ngram": 0.2}, options=lambda i, step, rng: TWO)
    loop.speed(400)
    for c in (0, 1):
        looks = [step for step, of in enumerate(loop.reasons) if Reason.PROBE in of[c::2]]
        assert len(looks) > 3
        assert min(np.diff(looks)) >= 4


def test_after_a_look_at_another_option_what_was_found_without_it_stands(monkeypatch):
    """Test that a draft made for what it shows costs one decision, not two, and that the next step's account is of what
    that step does.
    """
    made = counted_allocations(monkeypatch)
    loop = Loop(4, lambda i, step: {"eagle": 0.9, "ngram": 0.2}, options=lambda i, step, rng: TWO)
    loop.speed(400)
    passed = 0
    for _ in range(300):
        decisions = loop.step()
        looked = [place for place, each in enumerate(decisions) if each.reason is Reason.PROBE]
        if not looked:
            continue
        before, chosen = len(made), loop.step()
        if len(made) == before:
            passed += 1
            account = loop.controller.account(looked[0])
            assert chosen[looked[0]].reason is not Reason.PROBE
            assert "probes" not in account.text
            assert account.goodput > 0
    assert passed > 3


@pytest.mark.parametrize("requests", [1, 6])
def test_a_draft_that_is_never_worth_it_is_looked_at_ever_more_seldom_and_probed_all_the_same(requests):
    """Test that most steps ask for no options once nothing has been worth drafting for long, that every request is
    probed in its turn, and that a draft which becomes good is drafted with again."""
    good = [False]
    loop = Loop(requests, lambda i, step: {"eagle": 0.97 if good[0] else 0.02})
    loop.speed(300)
    asked = []
    for _ in range(400):
        asked.append(loop.controller.wants_options)
        loop.step()
    assert sum(asked) < 0.3 * len(asked)
    probed = [sum(of[i] is Reason.PROBE for of in loop.reasons[300:]) for i in range(requests)]
    assert min(probed) > 0
    good[0] = True
    loop.speed(1200)
    assert np.mean([k > 0 for k, _ in loop.chosen[-1]]) > 0.5


def test_a_newcomer_and_other_settings_end_a_doze():
    """Test that what was found to be worthless for some is looked at anew for another, and under other settings."""
    loop = Loop(1, lambda i, step: {"eagle": 0.02})
    loop.speed(300)
    while loop.controller.wants_options:
        loop.step()
    loop.controller.configure(PolicySettings(k_max=4))
    assert loop.controller.wants_options
    while loop.controller.wants_options:
        loop.step()
    view = RequestView("new", "other", "t", 10_000, 100, True, None, 0, ())
    loop.controller.decide(LoadView(1, 0, 1.0), [view])
    assert loop.controller.wants_options


def test_a_newcomer_whose_draft_is_worth_nothing_either_is_soon_looked_at_as_seldom():
    """Test that one look is enough where its class is known: who comes while others doze had none in its first step."""
    names = ["a"]
    loop = Loop(4, lambda i, step: {"eagle": 0.01}, name=lambda i, step: f"{names[0]}{i}")
    loop.speed(600)
    while loop.controller.wants_options:
        loop.step()
    names[0] = "b"
    asked = []
    for _ in range(24):
        asked.append(loop.controller.wants_options)
        decisions = loop.step()
        assert {each.k for each in decisions} == {0}
    assert asked[:3] == [False, True, False]
    assert sum(asked) <= 6
