"""Our policy on vLLM's scheduler, without vLLM: what is chosen, cut, learned and reported."""

import math
from statistics import mean
from types import SimpleNamespace

import pytest

from engine.api import Configure, DraftSettings
from engine.vllm.steering import Drafter, Steering, matched
from policies.base import LoadView, Reason
from policies.check import Check, Verdict
from policies.cost import StepCosts
from policies.settings import LoadSettings, PolicySettings
from tests.vllm.fake import FakeAsyncScheduler, FakeRequest, FakeScheduler

_FLAT = StepCosts(steps=((1, 0.010), (2, 0.0101)))


def _steps(scheduler: FakeScheduler, count: int) -> list:
    return [scheduler.step() for _ in range(count)]


def _drafted(reports: list, request: str) -> float:
    return mean(one.drafted for report in reports for one in report.rounds if one.request == request)


def test_each_request_gets_its_own_length_by_what_it_has_shown():
    scheduler = FakeScheduler([FakeRequest("good", 0.95), FakeRequest("bad", 0.05)])
    reports = _steps(scheduler, 400)[100:]
    assert _drafted(reports, "good") > 4.0
    assert _drafted(reports, "bad") < 0.3


def test_where_rows_are_dear_nobody_drafts_and_what_lookups_would_have_said_is_still_learned():
    """Test that a load of half-right lookups is not drafted for, and that the one text that turns to copying is."""
    dear = StepCosts(steps=((1, 0.010), (64, 0.64)))
    requests = [FakeRequest(f"r{i}", 0.4) for i in range(16)]
    scheduler = FakeScheduler(requests, costs=dear)
    reports = _steps(scheduler, 200)[100:]
    assert mean(one.drafted for report in reports for one in report.rounds) < 0.05
    shown = {
        one.grade: one
        for one in scheduler.pilot.steering.policy.class_acceptance()
        if one.proposer == "ngram"
    }
    assert shown[0].by_position[0] == pytest.approx(0.4, abs=0.08)
    assert shown[0].examined > 100.0


def test_rounds_are_reported_as_they_were_verified():
    scheduler = FakeScheduler([FakeRequest("a", 0.9)], costs=_FLAT)
    for report in _steps(scheduler, 60)[2:]:
        (one,) = report.rounds
        assert one.examined - one.accepted in {0, 1}
        assert one.accepted <= one.examined <= one.drafted <= one.k
        assert report.rows == 1 + one.drafted
        assert report.committed == 1 + one.accepted
        assert report.kv.used == 25


@pytest.mark.parametrize(
    ("method", "kind"), [("ngram", "goodput"), ("eagle", "goodput"), ("ngram", "static")]
)
def test_each_text_tells_what_was_behind_its_decisions_now_and_then(method, kind):
    """Test that one in about 64 rounds of each has what was expected and what else there was."""
    scheduler = FakeScheduler(
        [FakeRequest("a", 0.9), FakeRequest("b", 0.5)],
        method=method,
        settings=PolicySettings(kind),
        costs=_FLAT,
    )
    rounds = [one for report in _steps(scheduler, 600) for one in report.rounds]
    told = [one for one in rounds if one.alternatives]
    assert {one.request for one in told} == {"a", "b"}
    assert len(rounds) / 150 < len(told) <= len(rounds) / 60
    assert all(f"k = {one.k} brings {one.goodput:.4g} tokens a second" in one.text for one in told)


def test_an_end_is_told_with_what_became_of_the_drafts():
    scheduler = FakeScheduler([FakeRequest("a", 0.9, max_tokens=40), FakeRequest("b", 0.9)], costs=_FLAT)
    reports = _steps(scheduler, 40)
    (end,) = [output for report in reports for output in report.outputs]
    rounds = [one for report in reports for one in report.rounds if one.request == "a"]
    assert (end.id, end.finish) == ("a", "length")
    assert end.report.tokens == 40
    assert end.report.rounds == len(rounds)
    assert sum(end.report.accepted) == sum(one.accepted for one in rounds)
    assert sum(report.committed for report in reports) == scheduler.requests["b"].num_output_tokens + 40 - 2


def test_a_request_that_is_aborted_is_told_of_and_forgotten():
    scheduler = FakeScheduler([FakeRequest("a", 0.9), FakeRequest("b", 0.9)])
    _steps(scheduler, 5)
    scheduler.end(scheduler.requests["a"])
    (end,) = scheduler.step().outputs
    assert (end.id, end.finish) == ("a", "cancelled")
    assert not scheduler.pilot.steering.forget("a")


def test_what_a_request_asks_for_in_its_extra_arguments_is_kept_to():
    def asking(**wishes) -> FakeRequest:
        name = wishes["specd_id"]
        return FakeRequest(f"vllm-{name}", 0.9, sampling_params=SimpleNamespace(extra_args=wishes))

    scheduler = FakeScheduler(
        [
            asking(specd_id="fixed", specd_k=2, specd_class="code", specd_tenant="x"),
            asking(specd_id="off", specd_speculate="off"),
            asking(specd_id="other", specd_proposer="eagle"),
            asking(specd_id="bound", specd_k_max=1),
            asking(specd_id="free"),
        ],
        costs=_FLAT,
    )
    rounds = [one for report in _steps(scheduler, 60)[20:] for one in report.rounds]
    by_name = {
        name: [one for one in rounds if one.request == name]
        for name in ("fixed", "off", "other", "bound", "free")
    }
    assert {one.k for one in by_name["fixed"]} == {2}
    assert {one.traffic_class for one in by_name["fixed"]} == {"code"}
    assert {(one.drafted, one.reason) for one in by_name["off"]} == {(0, Reason.REQUEST_OFF)}
    assert {one.drafted for one in by_name["other"]} == {0}
    assert max(one.drafted for one in by_name["bound"]) == 1
    assert mean(one.drafted for one in by_name["free"]) > 3.0


@pytest.mark.parametrize("method", ["ngram", "eagle"])
@pytest.mark.parametrize(
    "asked",
    [
        {"specd_k": math.inf},
        {"specd_k": math.nan},
        {"specd_k": -math.inf},
        {"specd_k": 2.5},
        {"specd_k": [1]},
        {"specd_k": "2"},
        {"specd_proposer": ["ngram"]},
        {"specd_speculate": ["off"]},
        {"specd_class": 10**5000},
        {"specd_class": "of\nlines"},
        {"specd_class": "x" * 65},
        {"specd_tenant": ["a"], "specd_id": 10**5000},
    ],
)
def test_what_makes_no_sense_in_extra_arguments_is_as_if_it_were_not_there(method, asked):
    """Test that no request can end vLLM by what it asks for: all that JSON can hold goes through whole steps, and the
    request is drafted for, named and classed as one that asked for nothing.
    """
    odd = FakeRequest("odd", 0.9, sampling_params=SimpleNamespace(extra_args=asked))
    scheduler = FakeScheduler([odd, FakeRequest("other", 0.9)], method=method, costs=_FLAT)
    reports = _steps(scheduler, 80)
    rounds = [one for report in reports for one in report.rounds]
    assert {(one.request, one.traffic_class) for one in rounds} == {("odd", "default"), ("other", "default")}
    assert _drafted(reports[40:], "odd") > 3.0
    scheduler.end(odd)
    (end,) = scheduler.step().outputs
    assert (end.id, end.foreign.tenant) == ("odd", "default")


def test_a_length_beyond_any_is_the_longest():
    """Test that a number of more digits than can be printed is one that is too large, and no more."""
    endless = FakeRequest("a", 0.9, sampling_params=SimpleNamespace(extra_args={"specd_k": 10**5000}))
    scheduler = FakeScheduler([endless], costs=_FLAT)
    assert {one.k for report in _steps(scheduler, 10)[2:] for one in report.rounds} == {8}


def test_classes_are_kept_few():
    """Test that names which a client makes up, one a request, end as "other", and those before them stay."""
    requests = [
        FakeRequest(f"r{i}", 0.5, sampling_params=SimpleNamespace(extra_args={"specd_class": f"c{i}"}))
        for i in range(100)
    ]
    scheduler = FakeScheduler(requests)
    classes = {one.request: one.traffic_class for one in _steps(scheduler, 3)[-1].rounds}
    assert len(set(classes.values())) <= 65
    assert (classes["r0"], classes["r99"]) == ("c0", "other")


@pytest.mark.parametrize("method", ["ngram", "eagle"])
def test_who_asks_for_a_length_has_it_where_drafts_are_ruled_out_for_others(method):
    """Test that vLLM makes drafts for it, though the policy looks at none."""
    never = PolicySettings(load=LoadSettings(table=((100, 0),)))
    fixed = FakeRequest("fixed", 0.9, sampling_params=SimpleNamespace(extra_args={"specd_k": 2}))
    scheduler = FakeScheduler([fixed], method=method, settings=never, costs=_FLAT)
    _steps(scheduler, 5)
    scheduler.link.orders.append(Configure(policy=PolicySettings(), draft=DraftSettings()))
    assert {one.drafted for report in _steps(scheduler, 80)[40:] for one in report.rounds} == {2}


def test_orders_take_effect_with_the_next_step():
    scheduler = FakeScheduler([FakeRequest("a", 0.95)], costs=_FLAT)
    _steps(scheduler, 30)
    scheduler.link.orders.append(
        Configure(policy=PolicySettings(kind="static", static_k=2), draft=DraftSettings())
    )
    assert {one.k for report in _steps(scheduler, 10) for one in report.rounds} == {2}
    scheduler.link.orders.append(Configure(policy=PolicySettings(kind="off"), draft=DraftSettings()))
    reports = _steps(scheduler, 10)
    assert {one.drafted for report in reports for one in report.rounds} == {0}
    assert scheduler.step_ks[-1] == 0, "nobody wants drafts: none are made"


def test_a_model_that_drafts_is_told_a_step_ahead_and_not_to_draft_where_that_is_lost():
    good = FakeScheduler([FakeRequest("a", 0.95)], method="eagle", costs=_FLAT)
    _steps(good, 300)
    assert mean(good.step_ks[-100:]) > 3.0
    bad = FakeScheduler([FakeRequest("a", 0.1)], method="eagle", costs=_FLAT)
    reports = _steps(bad, 300)
    assert mean(bad.step_ks[-100:]) < 0.3
    for report in reports:
        assert all(one.drafted <= one.k for one in report.rounds)


def test_a_model_drafts_as_far_as_the_longest_and_each_verifies_its_own():
    scheduler = FakeScheduler([FakeRequest("good", 0.97), FakeRequest("bad", 0.05)], method="eagle")
    reports = _steps(scheduler, 500)[200:]
    assert _drafted(reports, "good") > 2.0
    assert _drafted(reports, "bad") < 0.5
    for k, report in zip(scheduler.step_ks[200:], reports[1:], strict=False):
        assert max(one.drafted for one in report.rounds) <= k


@pytest.mark.parametrize("kind", [FakeScheduler, FakeAsyncScheduler])
@pytest.mark.parametrize(
    "ks",
    [[k for k in range(6) for _ in range(20)], [0, 5], [0, 5, 2, 4, 1, 3], [0, 0, 0, 0, 0, 0, 0, 4]],
    ids=["slowly", "in turn", "each step", "a probe now and then"],
)
def test_what_drafting_costs_is_learned_though_nobody_times_it(ks, kind):
    """Of a model that takes 2 ms a level, as the fake does: also where hardly any step verifies as far as it drafts."""
    scheduler = kind([FakeRequest("a", 0.6)], method="eagle", costs=_FLAT)
    for step in range(600):
        policy = PolicySettings(kind="static", static_k=ks[step % len(ks)])
        scheduler.link.orders.append(Configure(policy=policy, draft=DraftSettings()))
        scheduler.step()
    cost = scheduler.pilot.steering.policy.costs
    assert cost.draft("eagle").of(4, 4) == pytest.approx(0.008, rel=0.4)


def test_what_is_drafted_deeper_than_anybody_verifies_is_paid_all_the_same():
    """Test that where vLLM has graphs for few lengths, a step is reckoned to draft as far as it does."""
    policy = PolicySettings(kind="static", static_k=3)
    scheduler = FakeScheduler([FakeRequest("a", 0.6)], method="eagle", lengths=(0, 8), settings=policy)
    steering, seen = scheduler.pilot.steering, []
    observe = steering.observe
    steering.observe = lambda shown, step: (seen.append(step), observe(shown, step))
    reports = _steps(scheduler, 5)
    assert [one.drafting[0].levels for one in seen] == [8] * 5
    assert [one.drafted for report in reports[1:] for one in report.rounds] == [3] * 4


@pytest.mark.parametrize("kind", [FakeScheduler, FakeAsyncScheduler])
def test_drafts_are_compared_with_plain_steps_at_their_own_price(kind, monkeypatch):
    """Test that where steps with drafts and plain ones take turns, each is reckoned to have paid for what it verified,
    and not for what it made for the next one: else drafts look free, and those that lose would never be noticed.
    """
    paid = {True: [], False: []}
    scheduler = kind([FakeRequest("a", 0.95)], method="eagle", costs=_FLAT)
    turns = (Verdict.DRAFT, Verdict.LOOK)
    monkeypatch.setattr(Check, "verdict", lambda *_: turns[len(scheduler.step_ks) % 2])
    monkeypatch.setattr(Check, "is_trying", lambda *_: True)
    monkeypatch.setattr(
        Check, "observe", lambda _, step, seconds, *__, drafted: paid[drafted].append((step.rows, seconds))
    )
    _steps(scheduler, 400)
    for drafted, seen in paid.items():
        assert len(seen) > 100
        for rows, seconds in seen[50:]:
            assert bool(rows - 1) is drafted
            assert seconds == pytest.approx(_FLAT.step(rows) + 0.002 * (rows - 1), rel=0.5)


def test_only_lengths_that_vllm_has_graphs_for_are_drafted():
    scheduler = FakeScheduler([FakeRequest("a", 0.8)], method="eagle", lengths=(0, 2, 5, 8), costs=_FLAT)
    _steps(scheduler, 200)
    assert set(scheduler.step_ks) <= {0, 2, 5, 8}


def test_lookups_too_are_only_as_long_as_vllm_can_draft():
    """Test that where one length is all that there is, as with several ranks, lookups keep it while they are off."""
    off = PolicySettings(kind="off")
    scheduler = FakeScheduler([FakeRequest("a", 0.9)], lengths=(8,), settings=off, costs=_FLAT)
    reports = _steps(scheduler, 10)
    assert set(scheduler.step_ks) == {8}
    assert _drafted(reports, "a") == 0


def test_suffix_drafts_are_as_long_as_configured_whatever_the_policy_says():
    """Test that vLLM's proposers which insist on one length are left alone, and their drafts cut."""
    scheduler = FakeScheduler([FakeRequest("a", 0.05)], method="suffix")
    reports = _steps(scheduler, 200)[100:]
    assert set(scheduler.step_ks) == {8}
    assert _drafted(reports, "a") < 0.5


@pytest.mark.parametrize(
    ("method", "asynchronous", "seen"),
    [("ngram", False, True), ("ngram", True, False), ("medusa", False, True), ("eagle", False, False)],
)
def test_drafts_are_seen_before_the_choice_where_making_them_costs_nothing(method, asynchronous, seen):
    assert Drafter(method, 4, (4,), asynchronous).is_seen is seen


def test_a_step_without_requests_decides_nothing():
    steering = Steering.of(Drafter("ngram", 4, (0, 4)), PolicySettings(), longest=100)
    load = LoadView(running=0, waiting=0, kv_free=1.0)
    assert steering.cut([], load) == []
    assert steering.decisions == 0


def test_matched_counts_what_two_texts_begin_with():
    assert matched([1, 2, 3], [1, 2, 4, 5]) == 2
    assert matched([1, 2], [1, 2, 3]) == 2
    assert matched([], [1]) == 0


@pytest.mark.parametrize("method", ["ngram", "eagle"])
def test_with_two_steps_under_way_each_is_told_what_was_its_own(method):
    """Test that drafts which are placeholders when they are scheduled are cut, verified and learned from as others are,
    though the step behind them is scheduled before anything is known of them.
    """
    requests = [FakeRequest("good", 0.97), FakeRequest("bad", 0.05)]
    scheduler = FakeAsyncScheduler(requests, method=method)
    reports = _steps(scheduler, 500)[200:]
    assert _drafted(reports, "good") > 2.0
    assert _drafted(reports, "bad") < 0.5
    for report in reports:
        assert report.rows == sum(1 + one.drafted for one in report.rounds)
        assert report.committed == sum(1 + one.accepted for one in report.rounds)
        assert all(one.examined - one.accepted in {0, 1} for one in report.rounds)
        assert all(one.accepted <= one.examined <= one.drafted <= one.k for one in report.rounds)


def test_what_is_said_for_a_text_that_has_ended_is_not_counted():
    """Test that of a step that was under way when a text ended, by itself or by its client, nothing is told of it."""
    requests = [FakeRequest("a", 0.9, max_tokens=40), FakeRequest("b", 0.9), FakeRequest("c", 0.9)]
    scheduler = FakeAsyncScheduler(requests, method="eagle", costs=_FLAT)
    reports = _steps(scheduler, 30)
    scheduler.end(scheduler.requests["b"])
    reports += _steps(scheduler, 5)
    ends = {output.id: place for place, report in enumerate(reports) for output in report.outputs}
    assert ends.keys() == {"a", "b"}
    for name, end in ends.items():
        rounds = [one for report in reports for one in report.rounds if one.request == name]
        (told,) = [output.report for output in reports[end].outputs if output.id == name]
        assert told.rounds == len(rounds)
        assert not [one for report in reports[end + 1 :] for one in report.rounds if one.request == name]


@pytest.mark.parametrize("kind", [FakeScheduler, FakeAsyncScheduler])
@pytest.mark.parametrize("method", ["ngram", "eagle"])
def test_nothing_is_kept_of_texts_that_have_ended(kind, method):
    """Test that a server which never rests does not grow with the requests that it has served."""
    requests = [FakeRequest(f"r{i}", 0.9, max_tokens=20 + i) for i in range(12)]
    scheduler = kind([*requests, FakeRequest("last", 0.9)], method=method, costs=_FLAT)
    _steps(scheduler, 60)
    assert list(scheduler.requests) == ["last"]
    steering = scheduler.pilot.steering
    assert list(steering._texts) == ["last"]
    assert {request for request, *_ in steering.policy._estimates._own} == {"last"}
