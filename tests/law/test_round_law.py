"""The exact joint law of one round, by enumeration: no sampling noise, so no tolerance but rounding."""

from itertools import product

import numpy as np
import pytest

from engine.verify import law
from engine.verify.law import Law, TreeOfLaws, one_hot, processed, round_law

PROCESSORS = {
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.5},
    "greedy": {"temperature": 0.0},
    "top_k": {"temperature": 1.0, "top_k": 2},
    "top_p": {"temperature": 0.8, "top_p": 0.7},
    "top_k and top_p": {"temperature": 1.3, "top_k": 3, "top_p": 0.9},
}


def tree(rng: np.random.Generator, vocabulary: int, k: int, processor: dict[str, float]) -> TreeOfLaws:
    """A law for every prefix of up to k tokens."""
    return {
        prefix: processed(rng.normal(size=vocabulary) * 2, **processor)
        for depth in range(k + 1)
        for prefix in product(range(vocabulary), repeat=depth)
    }


def extended(
    outcomes: dict[tuple[int, ...], float], p: TreeOfLaws, k: int, vocabulary: int
) -> dict[tuple[int, ...], float]:
    """Law of k+1 tokens: a round's outcome, then plain sampling from the target."""
    joint: dict[tuple[int, ...], float] = {}
    for outcome, mass in outcomes.items():
        for rest in product(range(vocabulary), repeat=k + 1 - len(outcome)):
            share, prefix = mass, outcome
            for token in rest:
                share *= p[prefix][token]
                prefix = (*prefix, token)
            joint[prefix] = joint.get(prefix, 0.0) + share
    return joint


def target_joint(p: TreeOfLaws, k: int, vocabulary: int) -> dict[tuple[int, ...], float]:
    return extended({(): 1.0}, p, k, vocabulary)


def check_same(got: dict[tuple[int, ...], float], wanted: dict[tuple[int, ...], float]) -> None:
    assert got.keys() <= wanted.keys()
    for outcome, mass in wanted.items():
        assert got.get(outcome, 0.0) == pytest.approx(mass, abs=1e-12)


@pytest.mark.parametrize("processor", PROCESSORS.values(), ids=PROCESSORS.keys())
@pytest.mark.parametrize(("vocabulary", "k"), [(3, 0), (3, 1), (3, 3), (4, 2), (5, 2)])
def test_a_round_followed_by_the_target_has_the_targets_joint_law(
    vocabulary: int, k: int, processor: dict[str, float]
) -> None:
    rng = np.random.default_rng([vocabulary, k])
    p, q = tree(rng, vocabulary, k, processor), tree(rng, vocabulary, k, processor)
    got = extended(round_law(p, q, k, vocabulary), p, k, vocabulary)
    check_same(got, target_joint(p, k, vocabulary))


@pytest.mark.parametrize("processor", PROCESSORS.values(), ids=PROCESSORS.keys())
def test_a_certain_draft_changes_nothing_either(processor: dict[str, float]) -> None:
    """Prompt lookup's q is one-hot, whatever the target's law."""
    vocabulary, k = 4, 2
    rng = np.random.default_rng(7)
    p = tree(rng, vocabulary, k, processor)
    q = {prefix: one_hot(int(rng.integers(vocabulary)), vocabulary) for prefix in p}
    check_same(extended(round_law(p, q, k, vocabulary), p, k, vocabulary), target_joint(p, k, vocabulary))


def test_a_draft_that_is_the_target_is_always_accepted() -> None:
    p = tree(np.random.default_rng(1), 3, 2, {"temperature": 1.0})
    outcomes = round_law(p, p, 2, 3)
    assert sum(mass for outcome, mass in outcomes.items() if len(outcome) == 3) == pytest.approx(1.0)


def test_a_token_the_draft_could_not_have_drawn_is_rejected() -> None:
    p, q = np.array([0.5, 0.5, 0.0]), np.array([1.0, 0.0, 0.0])
    assert law.acceptance(p, q, 1) == 0.0
    assert law.verify_chain([p, p], [q], [1], [0.0], [0.0, 0.0]) == (0, 1)


@pytest.mark.parametrize("draft", [(0, 1), (2, 2), (1,), ()])
def test_verify_certain_has_the_law_of_rejection_with_a_one_hot_q(draft: tuple[int, ...]) -> None:
    """Integrates over a grid that hits every boundary of laws in twelfths: exact."""
    vocabulary, k, grid = 3, len(draft), 12
    rng = np.random.default_rng(5)
    p = {t: _twelfths(rng) for depth in range(k + 1) for t in product(range(vocabulary), repeat=depth)}
    q = {t: one_hot(draft[len(t)], vocabulary) for t in p if len(t) < k}
    counted: dict[tuple[int, ...], float] = {}
    coins = (np.arange(grid) + 0.5) / grid
    for sample in product(coins, repeat=k + 1):
        accepted, token = law.verify_certain([p[draft[:j]] for j in range(k + 1)], draft, sample)
        outcome = (*draft[:accepted], token)
        counted[outcome] = counted.get(outcome, 0.0) + grid ** -(k + 1)
    check_same(counted, {**dict.fromkeys(counted, 0.0), **round_law(p, q, k, vocabulary)})


def test_verify_chain_has_the_law_that_round_law_says() -> None:
    """Integrates verify_chain over a fine grid of its uniforms: exact up to the grid."""
    vocabulary, grid = 3, 240
    rng = np.random.default_rng(3)
    p = {(): _twelfths(rng)} | {(t,): _twelfths(rng) for t in range(vocabulary)}
    q = {(): _twelfths(rng)}
    counted: dict[tuple[int, ...], float] = {}
    coins = (np.arange(grid) + 0.5) / grid
    for draft in range(vocabulary):
        for accept in coins:
            for sample in coins:
                accepted, token = law.verify_chain(
                    [p[()], p[(draft,)]], [q[()]], [draft], [accept], [sample, sample]
                )
                outcome = (draft, token) if accepted else (token,)
                counted[outcome] = counted.get(outcome, 0.0) + q[()][draft] / grid**2
    expected = round_law(p, q, 1, vocabulary)
    for outcome, mass in expected.items():
        assert counted.get(outcome, 0.0) == pytest.approx(mass, abs=2.5 / grid)


def _twelfths(rng: np.random.Generator) -> Law:
    return rng.multinomial(12, [1 / 3] * 3) / 12


def test_top_k_and_top_p_keep_ties_and_nothing_more() -> None:
    logits = np.log([0.4, 0.2, 0.2, 0.1, 0.1])
    assert processed(logits, 1.0, top_k=2) == pytest.approx([0.5, 0.25, 0.25, 0, 0])
    assert processed(logits, 1.0, top_p=0.5) == pytest.approx([0.5, 0.25, 0.25, 0, 0])
    assert processed(logits, 1.0, top_p=0.4) == pytest.approx([1, 0, 0, 0, 0])
    assert processed(logits, 1.0, top_k=0, top_p=1.0) == pytest.approx([0.4, 0.2, 0.2, 0.1, 0.1])
