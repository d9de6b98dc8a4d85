"""The exact joint law of one round, by enumeration: no sampling noise, so no tolerance but rounding."""

from itertools import product

import numpy as np
import pytest

from engine.draft.shape import chain
from engine.verify import law
from engine.verify.law import Law, TreeOfLaws, one_hot, processed, round_law
from engine.verify.law_block import block_law, chances, level_chances, verify_block
from engine.verify.law_tree import Tree, level_chance, tree_law, trees, verify_certain_tree, verify_tree

PROCESSORS = {
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.5},
    "greedy": {"temperature": 0.0},
    "top_k": {"temperature": 1.0, "top_k": 2},
    "top_p": {"temperature": 0.8, "top_p": 0.7},
    "top_k and top_p": {"temperature": 1.3, "top_k": 3, "top_p": 0.9},
}


def tree(
    rng: np.random.Generator, vocabulary: int, k: int, processor: dict[str, float], *, grammar: bool = False
) -> TreeOfLaws:
    """A law for every prefix of up to k tokens; a grammar forbids a token or two, others after each prefix."""
    return {
        prefix: processed(
            rng.normal(size=vocabulary) * 2 + grammar * _forbidden(prefix, vocabulary), **processor
        )
        for depth in range(k + 1)
        for prefix in product(range(vocabulary), repeat=depth)
    }


def _forbidden(prefix: tuple[int, ...], vocabulary: int) -> Law:
    row = np.zeros(vocabulary)
    row[[(sum(prefix) + len(prefix)) % vocabulary, (3 * sum(prefix) + 1) % vocabulary]] = -1e9
    return row


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


processors = pytest.mark.parametrize("processor", PROCESSORS.values(), ids=PROCESSORS.keys())
masks = pytest.mark.parametrize("masked", ["", "p", "pq"], ids=["free", "draft unaware", "grammar"])


@processors
@masks
@pytest.mark.parametrize(("vocabulary", "k"), [(3, 0), (3, 1), (3, 3), (4, 2), (5, 2)])
def test_a_round_followed_by_the_target_has_the_targets_joint_law(
    vocabulary: int, k: int, processor: dict[str, float], masked: str
) -> None:
    """Token by token and as a block; with a grammar that the draft may know of or not."""
    rng = np.random.default_rng([vocabulary, k])
    p, q = (tree(rng, vocabulary, k, processor, grammar=who in masked) for who in "pq")
    wanted = target_joint(p, k, vocabulary)
    check_same(extended(round_law(p, q, k, vocabulary), p, k, vocabulary), wanted)
    drafts = {prefix: law for prefix, law in q.items() if len(prefix) < k}
    check_same(extended(block_law(p, drafts, vocabulary), p, k, vocabulary), wanted)


@processors
def test_a_block_may_end_where_its_own_tokens_say(processor: dict[str, float]) -> None:
    """A draft that stops short (a text that would end, a guess too unsure) is no bias."""
    vocabulary, k = 3, 3
    rng = np.random.default_rng(11)
    p, q = tree(rng, vocabulary, k, processor), tree(rng, vocabulary, k - 1, processor)
    stops = {(), (0,), (1,), (1, 2)}
    drafts = {prefix: law for prefix, law in q.items() if prefix in stops}
    assert set(drafts) == stops
    check_same(extended(block_law(p, drafts, vocabulary), p, k, vocabulary), target_joint(p, k, vocabulary))


SHAPES = {
    "chain": [-1, 0, 1],
    "siblings": [-1, -1, -1],
    "two levels": [-1, -1, 0, 0, 1],
    "lopsided": [-1, 0, -1, 1, 0],
}


@processors
@masks
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_drawn_tree_followed_by_the_target_has_the_targets_joint_law(
    shape: list[int], processor: dict[str, float], masked: str
) -> None:
    vocabulary, k = 3, 3
    rng = np.random.default_rng([9, len(shape)])
    p, q = (tree(rng, vocabulary, k, processor, grammar=who in masked) for who in "pq")
    got = extended(tree_law(p, q, shape, vocabulary), p, k, vocabulary)
    check_same(got, target_joint(p, k, vocabulary))


def test_a_wider_vocabulary_in_a_drawn_tree() -> None:
    for vocabulary in (4, 5):
        rng = np.random.default_rng(vocabulary)
        p, q = (tree(rng, vocabulary, 2, {"temperature": 1.0}) for _ in "pq")
        got = extended(tree_law(p, q, [-1, -1, 0], vocabulary), p, 2, vocabulary)
        check_same(got, target_joint(p, 2, vocabulary))


@processors
def test_a_tree_of_one_child_per_node_is_a_chain(processor: dict[str, float]) -> None:
    rng = np.random.default_rng(2)
    p, q = (tree(rng, 3, 3, processor) for _ in "pq")
    check_same(tree_law(p, q, chain(3), 3), {**round_law(p, q, 3, 3)})


def length(outcomes: dict[tuple[int, ...], float]) -> float:
    return sum(len(outcome) * mass for outcome, mass in outcomes.items())


@processors
def test_a_block_keeps_as_much_as_token_by_token_and_mostly_more(processor: dict[str, float]) -> None:
    gains = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        p, q = (tree(rng, 3, 3, processor) for _ in "pq")
        drafts = {prefix: law for prefix, law in q.items() if len(prefix) < 3}
        gains.append(length(block_law(p, drafts, 3)) - length(round_law(p, q, 3, 3)))
    assert min(gains) > -1e-12
    assert max(gains) > 0.02 or processor["temperature"] == 0


def test_block_verification_by_hand() -> None:
    """The paper's example: token by token keeps 10/9 tokens of two on average, a block 11/9."""
    p = {prefix: np.array([1 / 3, 2 / 3]) for prefix in [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]}
    q = {prefix: np.array([2 / 3, 1 / 3]) for prefix in p}
    assert length(round_law(p, q, 2, 2)) - 1 == pytest.approx(10 / 9)
    assert length(block_law(p, {t: law for t, law in q.items() if len(t) < 2}, 2)) - 1 == pytest.approx(
        11 / 9
    )


@pytest.mark.parametrize("processor", PROCESSORS.values(), ids=PROCESSORS.keys())
def test_a_certain_draft_changes_nothing_either(processor: dict[str, float]) -> None:
    """Prompt lookup's q is one-hot, whatever the target's law."""
    vocabulary, k = 4, 2
    rng = np.random.default_rng(7)
    p = tree(rng, vocabulary, k, processor)
    q = {prefix: one_hot(int(rng.integers(vocabulary)), vocabulary) for prefix in p}
    check_same(extended(round_law(p, q, k, vocabulary), p, k, vocabulary), target_joint(p, k, vocabulary))
    drafts = {prefix: law for prefix, law in q.items() if len(prefix) < k}
    check_same(extended(block_law(p, drafts, vocabulary), p, k, vocabulary), target_joint(p, k, vocabulary))


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


@pytest.mark.parametrize(
    ("tokens", "parents"), [((0, 1, 2, 1), (-1, -1, 0, 1)), ((2, 2, 0), (-1, 0, 0)), ((), ())]
)
def test_a_certain_trees_text_is_that_of_plain_decoding(
    tokens: tuple[int, ...], parents: tuple[int, ...]
) -> None:
    """For every stretch that the uniforms can fall into: the committed tokens are those drawn without any draft."""
    rng = np.random.default_rng(6)
    p = {t: _twelfths(rng) for depth in range(3) for t in product(range(3), repeat=depth)}
    drafted = Tree(tokens, parents)
    rows = [p[drafted.prefix(node)] for node in range(-1, len(tokens))]
    for sample in product((np.arange(12) + 0.5) / 12, repeat=3):
        path, last = verify_certain_tree(rows, tokens, parents, sample)
        plain: tuple[int, ...] = ()
        for uniform in sample[: len(path) + 1]:
            plain = (*plain, law.draw(p[plain], uniform))
        assert (*(tokens[node] for node in path), last) == plain
        longer = [n for n in range(len(tokens)) if drafted.prefix(n) == plain]
        assert not longer, "a child that carries the token was there"


def test_the_rules_for_trees_are_those_for_chains_where_no_node_has_two_children() -> None:
    rng = np.random.default_rng(8)
    for _ in range(200):
        p, q = rng.dirichlet(np.ones(4), size=4), rng.dirichlet(np.ones(4), size=3)
        draft = [int(rng.choice(4, p=own)) for own in q]
        accept, sample = rng.random(3), rng.random(4)
        drawn = Tree(tuple(draft), tuple(chain(3)), tuple(q))
        path, token = verify_tree(p, drawn, accept, sample)
        assert (len(path), token) == law.verify_chain(p, q, draft, accept, sample)
        path, token = verify_certain_tree(p, draft, chain(3), sample)
        assert (len(path), token) == law.verify_certain(p, draft, sample)


def test_verify_block_has_the_law_that_block_law_says() -> None:
    """Its uniforms over points that fill the cube evenly (a Latin hypercube)."""
    points = 1500
    rng = np.random.default_rng(4)
    p = {t: _twelfths(rng) for depth in range(3) for t in product(range(3), repeat=depth)}
    q = {t: _twelfths(rng) for t in p if len(t) < 2}
    counted: dict[tuple[int, ...], float] = {}
    for draft in product(range(3), repeat=2):
        rows = [p[draft[:j]] for j in range(3)]
        cube = np.array([rng.permutation(points) for _ in range(3)]).T / points
        for *accept, sample in cube + 0.5 / points:
            accepted, token = verify_block(rows, [q[()], q[draft[:1]]], draft, accept, [sample] * 3)
            outcome = (*draft[:accepted], token)
            mass = q[()][draft[0]] * q[draft[:1]][draft[1]] / points
            counted[outcome] = counted.get(outcome, 0.0) + mass
    for outcome, mass in block_law(p, q, 3).items():
        assert counted.get(outcome, 0.0) == pytest.approx(mass, abs=0.01)


@processors
@masks
def test_a_blocks_level_chances_have_the_mean_of_what_is_accepted(
    processor: dict[str, float], masked: str
) -> None:
    """Over all drafts and all outcomes of a level that is examined. At one draft they need not agree."""
    vocabulary, k = 3, 3
    rng = np.random.default_rng(12)
    p, q = (tree(rng, vocabulary, k, processor, grammar=who in masked) for who in "pq")
    expected, accepted = np.zeros(k), np.zeros(k)
    for draft in product(range(vocabulary), repeat=k):
        laws = [p[draft[:j]] for j in range(k + 1)], [q[draft[:j]] for j in range(k)]
        left = float(np.prod([law[token] for law, token in zip(laws[1], draft, strict=True)]))
        for kept, own in reversed(list(enumerate([1.0, *chances(*laws, draft)]))):
            levels = np.arange(k)
            accepted += left * own * (levels < kept)
            expected += left * own * (levels <= kept) * np.array(level_chances(*laws, draft))
            left *= 1 - own
    assert expected == pytest.approx(accepted, abs=1e-12)


@pytest.mark.parametrize("processor", [PROCESSORS["plain"], PROCESSORS["top_k and top_p"]])
@pytest.mark.parametrize("shape", [SHAPES["chain"], [-1, -1, 0]])
def test_a_trees_level_chances_have_the_mean_of_what_is_accepted(
    shape: list[int], processor: dict[str, float]
) -> None:
    """Chains token by token too, which are trees without siblings: all drafts, over a grid of coins for each node."""
    rng = np.random.default_rng(13)
    p, q = (tree(rng, 3, 3, processor) for _ in "pq")
    coins = rng.permuted(np.tile((np.arange(400) + 0.5) / 400, (len(shape), 1)), axis=1).T
    expected, accepted = np.zeros(3), np.zeros(3)
    for drawn, mass in trees(q, shape, 3):
        rows = [p[drawn.prefix(node)] for node in range(-1, len(drawn.tokens))]
        for accept in coins:
            path, _ = verify_tree(rows, drawn, accept, [0.5] * 4)
            accepted[: len(path)] += mass / len(coins)
            for level, node in enumerate([-1, *path]):
                if node in drawn.parents:
                    expected[level] += mass / len(coins) * level_chance(rows[node + 1], drawn, node)
    assert expected == pytest.approx(accepted, abs=0.02)


def _twelfths(rng: np.random.Generator) -> Law:
    return rng.multinomial(12, [1 / 3] * 3) / 12


def test_top_k_and_top_p_keep_ties_and_nothing_more() -> None:
    logits = np.log([0.4, 0.2, 0.2, 0.1, 0.1])
    assert processed(logits, 1.0, top_k=2) == pytest.approx([0.5, 0.25, 0.25, 0, 0])
    assert processed(logits, 1.0, top_p=0.5) == pytest.approx([0.5, 0.25, 0.25, 0, 0])
    assert processed(logits, 1.0, top_p=0.4) == pytest.approx([1, 0, 0, 0, 0])
    assert processed(logits, 1.0, top_k=0, top_p=1.0) == pytest.approx([0.4, 0.2, 0.2, 0.1, 0.1])
