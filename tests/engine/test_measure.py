"""What steps and drafts cost is timed on the engine itself, which is afterwards as it was."""

import socket
from dataclasses import replace

import pytest

from engine.api import DraftSettings
from engine.measure import calibrate, in_words, measure
from engine.start import rest
from engine.worker import Worker
from policies.cost import DraftCost
from tests.engine.conftest import MakeEngine, generate, request

PROMPT = [5, 6, 7, 8] * 4


def test_rows_and_levels_are_timed_and_nothing_of_it_stays(make_engine: MakeEngine) -> None:
    engine = make_engine("layer-skip", k=2)
    policy, steps = engine.policy, engine.steps
    costs = measure(engine, engine.proposers)
    assert [rows for rows, _ in costs.steps] == [1, 2, 4, 8, 16, 32]
    assert 0.0 < costs.plain < 1.0
    assert costs.drafts["layer-skip"].level > 0.0
    assert "a level of layer-skip" in in_words(costs)
    assert (engine.policy, engine.steps, engine.has_work) == (policy, steps, False)
    assert policy.class_acceptance() == []
    plain = generate(make_engine("none"), request("a", PROMPT))["a"].tokens
    assert generate(engine, request("a", PROMPT))["a"].tokens == plain


def test_what_a_cheap_proposer_says_of_itself_is_believed(make_engine: MakeEngine) -> None:
    """Prompt lookup has nothing to say on the text that is written meanwhile."""
    engine = make_engine("ngram")
    costs = measure(engine, engine.proposers)
    assert costs.drafts == engine._roster.costs(costs.plain)


def test_an_engine_without_room_for_it_is_left_alone(make_engine: MakeEngine) -> None:
    engine = make_engine("layer-skip", max_context=40)
    assert measure(engine, engine.proposers) is None
    assert not engine.has_work


def test_the_policy_begins_with_what_was_measured_and_learns_on(make_engine: MakeEngine) -> None:
    """The curve has its 32 rows, a key has a cost where there is room for a long text, and steps are foreseen."""
    engine = make_engine("layer-skip", kv_bytes=4 << 20, max_context=900)
    said: list[str] = []
    calibrate(engine, said.append)
    (line,) = said
    assert line.startswith("measured in ")
    assert engine.policy.costs.steps[-1][0] == 32
    assert engine.unmeasured == ()
    assert engine.policy.cost_errors() == (), "what is measured is not learned from"
    generate(engine, request("a", PROMPT, max_tokens=80))
    overall = engine.policy.cost_errors()[0]
    assert overall.steps > 20
    assert engine.policy.costs.steps[-1][0] > 32, "a curve of many knots is learned"


def test_a_proposer_that_a_reload_brings_is_measured_at_rest(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for signs of life gets them, a request that comes breaks it off, and what is known of those that
    stayed, and of steps, is kept.
    """
    monkeypatch.setattr("engine.start._WORTH_MEASURING", 0)
    engine = make_engine("ngram")
    policy = engine._launch.policy
    known = replace(engine.policy.costs, steps=((1, 0.25), (2, 0.5)), drafts={"ngram": DraftCost(0.125)})
    engine.policy.reckon(known)
    engine.adopt(known.drafts)
    engine.configure(policy, DraftSettings(kinds=("ngram", "layer-skip"), ngram_min=1, ngram_max=3))
    assert [each.name for each in engine.unmeasured] == ["layer-skip"]
    assert engine.policy.costs.drafts["ngram"] == DraftCost(0.125)
    rest(engine, lambda _: None, iter([True, True, False]).__next__)
    assert [each.name for each in engine.unmeasured] == ["layer-skip"]
    assert not engine.has_work
    asked: list[bool] = []
    rest(engine, lambda _: None, lambda: asked.append(True) or True)
    assert len(asked) > 10
    assert engine.unmeasured == ()
    costs = engine.policy.costs
    assert (costs.steps, costs.drafts["ngram"]) == (known.steps, known.drafts["ngram"])
    assert 0.0 < costs.drafts["layer-skip"].level < 0.1, (
        "a tenth of a second: no longer what it says of itself"
    )


def test_the_daemon_hears_of_an_engine_that_measures(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would take one that measures for longer than it is patient for one that hangs."""
    monkeypatch.setattr("engine.start._WORTH_MEASURING", 0)
    monkeypatch.setattr("engine.worker._IDLE_SECONDS", 0.01)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert Worker(theirs)._next(make_engine("layer-skip")) == []
        ours.settimeout(0.5)
        heard = ours.recv(1 << 16).count(b"Idle")
    assert heard > 10
