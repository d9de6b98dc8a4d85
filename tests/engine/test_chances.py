"""What a policy is told of the chances that drafted tokens had."""

import numpy as np
import pytest

from engine.core import Engine
from policies.base import Observation
from tests.engine.conftest import MakeEngine, generate, request

PROMPT = [9, 8, 7, 9, 8, 7, 9, 8]


def observed(engine: Engine, temperature: float, requests: int) -> list[Observation]:
    """All that the policy is told of some texts."""
    seen: list[Observation] = []
    learn = engine._policy.observe
    engine._policy.observe = lambda observations, step: (seen.extend(observations), learn(observations, step))
    generate(
        engine,
        *(request(str(s), PROMPT, temperature=temperature, seed=s, max_tokens=30) for s in range(requests)),
    )
    return seen


@pytest.mark.parametrize("rule", ["token", "block"])
def test_what_was_accepted_of_each_level_has_the_mean_of_its_chances(
    make_engine: MakeEngine, rule: str
) -> None:
    """Within five deviations; and the chances vary less than the coins."""
    engine = make_engine("layer-skip", k=4)
    engine._verification = rule
    seen = observed(engine, temperature=0.3, requests=60)
    assert len(seen) > 300
    assert all(len(each.chances) == each.examined for each in seen)
    for level in range(4):
        pairs = [(each.accepted > level, each.chances[level]) for each in seen if each.examined > level]
        coins, chances = np.array(pairs, dtype=np.float64).T
        assert abs((coins - chances).sum()) < 5 * np.sqrt((chances * (1 - chances)).sum())
        assert chances.std() < 0.9 * coins.std(), coins.mean()


@pytest.mark.parametrize(("kind", "temperature"), [("ngram", 1.0), ("model", 0.0)])
def test_where_no_law_was_drawn_from_there_are_no_chances(
    make_engine: MakeEngine, kind: str, temperature: float
) -> None:
    seen = observed(make_engine(kind, k=4), temperature, requests=4)
    assert seen
    assert not any(each.chances for each in seen)
