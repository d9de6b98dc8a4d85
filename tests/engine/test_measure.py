"""What steps and drafts cost is timed on the engine itself, which is afterwards as it was."""

from engine.measure import calibrate, in_words, measure
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


def test_the_policy_reckons_with_what_was_measured(make_engine: MakeEngine) -> None:
    engine = make_engine("layer-skip")
    said: list[str] = []
    calibrate(engine, said.append)
    assert engine.policy.costs.steps[-1][0] == 32
    (line,) = said
    assert line.startswith("measured in ")
