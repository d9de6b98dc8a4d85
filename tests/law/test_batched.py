"""The batched implementation does what the reference does, case by case and number by number."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import SamplingParams
from engine.draft.base import Draft
from engine.sampling.processors import RowParams, probabilities
from engine.sampling.rng import Purpose, uniforms
from engine.verify import law
from engine.verify.chain import Claim, verify
from engine.verify.draw import draw

sampling = st.builds(
    SamplingParams,
    max_tokens=st.just(8),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 50]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    seed=st.integers(0, 2**63 - 1),
)


def reference(claim: Claim, rows: np.ndarray) -> tuple[int, int]:
    """One claim by law.py, with the random numbers that its seed and positions stand for."""
    params, draft = claim.sampling, claim.draft
    p = [law.processed(row, params.temperature, params.top_k, params.top_p) for row in rows]
    positions = claim.position + np.arange(len(draft.tokens) + 1)
    seeds = np.full(len(positions), params.seed, dtype=np.uint64)
    sample = list(uniforms(seeds, positions, Purpose.SAMPLE))
    if draft.probs is None:
        return law.verify_certain(p, draft.tokens, sample)
    q = [np.asarray(row, dtype=np.float64) for row in draft.probs]
    return law.verify_chain(p, q, draft.tokens, list(uniforms(seeds, positions, Purpose.ACCEPT)), sample)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_ragged_batch_is_decided_as_each_request_alone_by_the_reference(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    size = data.draw(st.sampled_from([5, 300]))
    claims, blocks = [], []
    for _ in range(data.draw(st.integers(1, 6))):
        k = data.draw(st.integers(0, 4))
        params = data.draw(sampling)
        rows = rng.normal(size=(k + 1, size)).astype(np.float32) * 3
        claims.append(
            Claim(
                _draft(rng, rows[:k], params, certain=data.draw(st.booleans())),
                params,
                prompt=[0] * int(rng.integers(500)),
            )
        )
        blocks.append(rows)
    verdicts = verify(torch.from_numpy(np.concatenate(blocks)), claims)
    for claim, rows, verdict in zip(claims, blocks, verdicts, strict=True):
        assert (verdict.accepted, verdict.token) == reference(claim, rows)
        assert verdict.examined == min(verdict.accepted + 1, len(claim.draft.tokens))


def _draft(rng: np.random.Generator, rows: np.ndarray, params: SamplingParams, *, certain: bool) -> Draft:
    """A draft near the target: often accepted, sometimes not."""
    size = rows.shape[1] if len(rows) else 0
    if params.temperature == 0 or certain:
        return Draft([int(row.argmax()) if rng.random() < 0.7 else int(rng.integers(size)) for row in rows])
    near = rows + rng.normal(size=rows.shape)
    laws = np.array([law.processed(row, params.temperature, params.top_k, params.top_p) for row in near])
    if len(laws) == 0:
        return Draft([])
    return Draft([int(rng.choice(size, p=q)) for q in laws], torch.from_numpy(laws.astype(np.float32)))


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
