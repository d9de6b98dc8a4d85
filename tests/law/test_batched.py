"""The batched implementation does what the reference does, case by case and number by number."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import SamplingParams
from engine.draft.base import Draft
from engine.draft.shape import children, depths
from engine.sampling.processors import RowParams, probabilities
from engine.sampling.rng import Purpose, uniforms
from engine.verify import law
from engine.verify.claim import Claim, Verdict
from engine.verify.draw import draw
from engine.verify.law_block import level_chances, verify_block
from engine.verify.law_tree import Tree, level_chance, verify_certain_tree, verify_tree, without
from engine.verify.step import verify

sampling = st.builds(
    SamplingParams,
    max_tokens=st.just(8),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 50]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    seed=st.integers(0, 2**63 - 1),
)


def reference(claim: Claim, rows: np.ndarray, rule: str) -> tuple[list[int], int, list[float]]:
    """One claim by the specification, with the random numbers that its seed and positions stand for: (accepted nodes,
    last token, the chance of each examined level).
    """
    params, draft = claim.sampling, claim.draft
    p = [law.processed(row, params.temperature, params.top_k, params.top_p) for row in rows]
    sample = [number(claim, depth, Purpose.SAMPLE) for depth in range(len(p))]
    if draft.probs is None:
        return *verify_certain_tree(p, draft.tokens, draft.shape, sample), []
    q = [np.asarray(row, dtype=np.float64) for row in draft.probs]
    if draft.parents is None and rule == "block":
        accept = [number(claim, 0, Purpose.BLOCK, j) for j in range(len(q))]
        accepted, token = verify_block(p, q, draft.tokens, accept, sample)
        return list(range(accepted)), token, level_chances(p, q, draft.tokens)[: accepted + 1]
    ranks = {node: rank for family in children(draft.shape) for rank, node in enumerate(family)}
    accept = [number(claim, d - 1, Purpose.ACCEPT, ranks[n]) for n, d in enumerate(depths(draft.shape))]
    tree = Tree(tuple(draft.tokens), tuple(draft.shape), tuple(q))
    path, token = verify_tree(p, tree, accept, sample)
    examined = [node for node in (-1, *path) if node in tree.parents]
    return path, token, [level_chance(p[node + 1], tree, node) for node in examined]


def number(claim: Claim, offset: int, purpose: Purpose, index: int = 0) -> float:
    seed = np.array([claim.sampling.seed], dtype=np.uint64)
    return float(uniforms(seed, np.array([claim.position + offset]), purpose, np.array([index]))[0])


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(["token", "block"]))
def test_a_ragged_batch_is_decided_as_each_request_alone_by_the_reference(
    data: st.DataObject, rule: str
) -> None:
    """Chains and trees, certain and drawn, greedy and sampled, side by side."""
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    size = data.draw(st.sampled_from([5, 300]))
    claims, blocks = [], []
    for _ in range(data.draw(st.integers(1, 6))):
        params = data.draw(sampling)
        shape = _shape(rng, data.draw(st.integers(0, 6)), tree=data.draw(st.booleans()))
        rows = rng.normal(size=(len(shape) + 1, size)).astype(np.float32) * 3
        draft, kept = _draft(rng, rows, params, shape, certain=data.draw(st.booleans()))
        claims.append(Claim(draft, params, prompt=[0] * int(rng.integers(500))))
        blocks.append(rows[kept])
    verdicts = verify(torch.from_numpy(np.concatenate(blocks)), claims, rule)
    for claim, rows, verdict in zip(claims, blocks, verdicts, strict=True):
        path, token, chances = reference(claim, rows, rule)
        assert (list(verdict.path), verdict.token) == (path, token)
        last = path[-1] if path else -1
        assert verdict.examined == len(path) + (last in claim.draft.shape)
        assert verdict.chances == pytest.approx(chances, abs=2e-5)


def _shape(rng: np.random.Generator, nodes: int, *, tree: bool) -> list[int]:
    return [int(rng.integers(-1, node)) if tree else node - 1 for node in range(nodes)]


def _draft(
    rng: np.random.Generator, rows: np.ndarray, params: SamplingParams, shape: list[int], *, certain: bool
) -> tuple[Draft, list[int]]:
    """A draft near the target: often accepted, sometimes not. With the rows that are left, as with the reference's
    trees: where siblings have used up their law, the others fall away.
    """
    chain = None if all(parent == node - 1 for node, parent in enumerate(shape)) else shape
    every = list(range(len(shape) + 1))
    if params.temperature == 0 or certain:
        tokens = [
            int(rows[parent + 1].argmax()) if rng.random() < 0.6 else int(rng.integers(rows.shape[1]))
            for parent in shape
        ]
        return Draft(tokens, parents=chain), every
    near = rows + rng.normal(size=rows.shape)
    left = {
        node - 1: law.processed(row, params.temperature, params.top_k, params.top_p)
        for node, row in enumerate(near)
    }
    tree, places = Tree(), {-1: -1}
    for node, parent in enumerate(shape):
        q = left[parent] if parent in places else None
        if q is None:
            continue
        token = int(rng.choice(len(q), p=q))
        left[parent] = without(q, token)
        places[node] = len(tree.tokens)
        tree = Tree((*tree.tokens, token), (*tree.parents, places[parent]), (*tree.laws, q))
    if not tree.tokens:
        return Draft([]), [0]
    probs = torch.from_numpy(np.array(tree.laws, dtype=np.float32))
    parents = None if chain is None else list(tree.parents)
    return Draft(list(tree.tokens), probs, parents=parents), [node + 1 for node in places]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(sampling.filter(lambda p: p.temperature > 0), min_size=1, max_size=5),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_processed_rows_equal_the_reference(params: list[SamplingParams], seed: int, ties: bool) -> None:
    logits = np.random.default_rng(seed).normal(size=(len(params), 400)).astype(np.float32) * 2
    if ties:
        logits = np.round(logits)
    got = probabilities(torch.from_numpy(logits), RowParams.of(params, torch.device("cpu")))
    for row, p, result in zip(logits, params, got, strict=True):
        wanted = law.processed(row, p.temperature, p.top_k, p.top_p)
        assert ((wanted > 0) == (result.numpy() > 0)).all()
        assert result.numpy() == pytest.approx(wanted, abs=1e-6)


def test_a_coin_just_below_one_draws_a_token_that_exists() -> None:
    weights = torch.tensor([[0.1, 0.2, 0.7, 0.0], [1.0, 0.0, 0.0, 0.0], [torch.nan] * 4])
    coins = torch.full((3,), 1 - 2.0**-53, dtype=torch.float64)
    tokens = draw(weights, coins).tolist()
    assert tokens[:2] == [2, 0]
    assert tokens[2] < 4
    assert law.draw(np.array([0.1, 0.2, 0.7, 0.0]), 1 - 2.0**-53) == 2


def test_a_row_that_is_not_a_number_decides_nothing() -> None:
    claim = Claim(Draft([1]), SamplingParams(max_tokens=4, temperature=0), [0, 1, 2])
    logits = torch.zeros(2, 8)
    logits[1, 3] = torch.nan
    (verdict,) = verify(logits, [claim])
    assert verdict.fault is not None


def test_uniforms_are_uniform_and_differ_by_seed_position_and_purpose() -> None:
    """Chi-square over 64 cells for each purpose, at fixed keys; neighbours share no number."""
    n = 64_000
    columns = []
    for purpose in Purpose:
        u = uniforms(np.full(n, 5, dtype=np.uint64), np.arange(n), purpose)
        counts = np.histogram(u, bins=64, range=(0, 1))[0]
        assert ((counts - n / 64) ** 2 / (n / 64)).sum() < 110  # 99.98 % point of chi-square with 63 degrees
        columns.append(u)
    columns.append(uniforms(np.arange(n, dtype=np.uint64), np.full(n, 5), Purpose.ACCEPT))
    correlation = np.corrcoef(np.array(columns)) - np.eye(len(columns))
    assert np.abs(correlation).max() < 5 / np.sqrt(n)
    assert (np.array(columns) < 1).all()


def test_statistics_agree_with_the_law_over_many_seeds() -> None:
    """After the exact tests, not instead: 20,000 rounds of one draft, each with its own seed."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2, 4)).astype(np.float32)
    p = [law.processed(row, 1.0) for row in rows]
    q = law.processed(rng.normal(size=4), 1.0)
    n = 20_000
    drafts = rng.choice(4, size=n, p=q)
    probs = torch.from_numpy(q.astype(np.float32))[None]
    claims = [
        Claim(Draft([int(token)], probs), SamplingParams(max_tokens=4, temperature=1.0, seed=seed), [])
        for seed, token in enumerate(drafts)
    ]
    verdicts = verify(torch.from_numpy(rows).repeat(n, 1), claims)
    first = [int(d) if v.accepted else v.token for d, v in zip(drafts, verdicts, strict=True)]
    shares = np.bincount(first, minlength=4) / n
    assert np.abs(shares - p[0]).max() < 5 * np.sqrt(0.25 / n)


PLAYS = {"token": ("token", None), "block": ("block", None), "tree": ("token", [-1, -1, 0, 0, 1])}


@pytest.mark.parametrize(("rule", "shape"), PLAYS.values(), ids=PLAYS.keys())
def test_round_after_round_the_text_has_the_targets_law(rule: str, shape: list[int] | None) -> None:
    """6,000 seeds play until three tokens are there, a draft of three levels each round, all random numbers the
    engine's own. A number that two rounds look at would show: the second would not be free of the first.
    """
    size, n, wanted = 3, 6000, 3
    rng = np.random.default_rng(2)
    logits = {
        t: rng.normal(size=size).astype(np.float32) for d in range(7) for t in product(range(size), repeat=d)
    }
    p = {t: law.processed(row, 1.0) for t, row in logits.items()}
    q = {t: law.processed(row + 2 * rng.normal(size=size), 1.0) for t, row in logits.items()}
    texts: dict[int, tuple[int, ...]] = dict.fromkeys(range(n), ())
    while playing := [seed for seed, text in texts.items() if len(text) < wanted]:
        claims = [_drawn_as_a_proposer(q, seed, texts[seed], shape) for seed in playing]
        rows = [
            logits[(*c.text, *c.draft.way(row))] for c in claims for row in range(len(c.draft.tokens) + 1)
        ]
        verdicts = verify(torch.from_numpy(np.array(rows)), claims, rule)
        texts.update({c.sampling.seed: _text(c, v) for c, v in zip(claims, verdicts, strict=True)})
    counts: dict[tuple[int, ...], int] = {}
    for text in texts.values():
        counts[text[:wanted]] = counts.get(text[:wanted], 0) + 1
    chi_square = 0.0
    for text in product(range(size), repeat=wanted):
        mass = n * p[()][text[0]] * p[text[:1]][text[1]] * p[text[:2]][text[2]]
        chi_square += (counts.get(text, 0) - mass) ** 2 / mass
    assert chi_square < 60  # 99.98 % point of chi-square with 26 degrees


def _drawn_as_a_proposer(
    q: dict[tuple[int, ...], np.ndarray], seed: int, text: tuple[int, ...], shape: list[int] | None
) -> Claim:
    tree = Tree()
    blank = Claim(Draft([]), SamplingParams(max_tokens=9, temperature=1.0, seed=seed), (), text)
    for node, parent in enumerate(range(-1, 2) if shape is None else shape):
        own = q[(*text, *tree.prefix(parent))]
        for elder in children(tree.parents)[parent + 1]:
            own = without(own, tree.tokens[elder])
        token = law.draw(own, number(blank, 0, Purpose.DRAFT, node))
        tree = Tree((*tree.tokens, token), (*tree.parents, parent), (*tree.laws, own))
    probs = torch.from_numpy(np.array(tree.laws, dtype=np.float32))
    return replace(blank, draft=Draft(list(tree.tokens), probs, parents=shape))


def _text(claim: Claim, verdict: Verdict) -> tuple[int, ...]:
    return (*claim.text, *(claim.draft.tokens[node] for node in verdict.path), verdict.token)
