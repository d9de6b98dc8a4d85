"""Edited rows: the fast form does what the reference does, and the reference what other libraries mean."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
)

from engine.api import SamplingParams
from engine.draft.base import Draft
from engine.sampling.edits import Edits
from engine.sampling.logprobs import at_temperature, logprobs
from engine.sampling.processors import RowParams, probabilities
from engine.sampling.rng import Purpose, uniforms
from engine.sampling.rows import PLAIN, Row, edit
from engine.verify import law
from engine.verify.claim import Claim
from engine.verify.law_block import block_law
from engine.verify.law_tree import tree_law
from engine.verify.step import verify
from tests.law.test_round_law import extended, target_joint

V = 40
ENDS = (1, 7)

tokens = st.integers(0, V - 1)
sampling = st.builds(
    SamplingParams,
    max_tokens=st.just(64),
    min_tokens=st.sampled_from([0, 0, 3, 6, 64]),
    temperature=st.sampled_from([0.0, 1e-3, 0.7, 1.0, 1.7]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    top_k=st.sampled_from([0, 1, 3]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.5, 0.5]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.5, -1.25, 2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.25, -2.0]),
    logit_bias=st.dictionaries(tokens, st.sampled_from([-100.0, -1.5, 0.5, 100.0, -np.inf]), max_size=4),
    allowed_tokens=st.none() | st.lists(tokens, min_size=1, max_size=12).map(tuple),
    banned_tokens=st.lists(tokens, max_size=3).map(tuple),
    stop_tokens=st.lists(tokens, max_size=2).map(tuple),
)
texts = st.lists(tokens, max_size=8)


def packed(grammar: np.ndarray) -> torch.Tensor:
    """[V] bool -> [ceil(V / 32)] int32."""
    bits = np.packbits(np.pad(grammar, (0, -len(grammar) % 32)), bitorder="little")
    return torch.from_numpy(bits.view(np.int32).copy())


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_rows_of_a_mixed_batch_are_edited_and_cut_as_each_by_the_reference(data: st.DataObject) -> None:
    """Each row by its own request and prefix, some under a grammar, some without edits, committed in pieces."""
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    rows, wanted, params = [], [], []
    logits = np.round(rng.normal(size=(4, V)) * 4) / data.draw(st.sampled_from([1, 4]))  # many ties
    for raw in logits:
        chosen = data.draw(sampling | st.just(PLAIN.edits.sampling))
        prompt, text, drafted = data.draw(texts), data.draw(texts), data.draw(texts)
        grammar = rng.random(V) < 0.5 if data.draw(st.booleans()) else None
        edits = Edits(chosen, prompt, ENDS)
        for token in text:
            edits.extend([token])
        rows.append(Row(edits, drafted, None if grammar is None else packed(grammar)))
        params.append(chosen)
        wanted.append(law.edited(raw, chosen, prompt, [*text, *drafted], end_tokens=ENDS, grammar=grammar))
    given_logits = torch.from_numpy(logits.astype(np.float32))
    got = edit(given_logits, rows)
    assert np.allclose(got.numpy(), np.array(wanted), rtol=1e-6, atol=1e-5)
    assert (given_logits.numpy() == logits).all(), "the model's rows are not for edits to change"
    drawn = [i for i, p in enumerate(params) if p.temperature > 0 and np.max(wanted[i]) > -np.inf]
    if drawn:
        laws = probabilities(got[drawn], RowParams.of([params[i] for i in drawn], got.device))
        for i, p in zip(drawn, laws, strict=True):
            chosen = params[i]
            exact = law.processed(wanted[i], chosen.temperature, chosen.top_k, chosen.top_p, chosen.min_p)
            assert p.numpy() == pytest.approx(exact, abs=1e-5)


def test_rows_that_nobody_edits_are_not_copied() -> None:
    logits = torch.zeros(3, V)
    late = Edits(SamplingParams(max_tokens=9, min_tokens=2), [1], ENDS, text=[3, 4])
    assert edit(logits, [PLAIN, Row(Edits(SamplingParams(max_tokens=5))), Row(late)]) is logits


def test_penalties_and_min_p_mean_what_transformers_means() -> None:
    rng = np.random.default_rng(0)
    logits, prompt = rng.normal(size=V) * 3, [3, 3, 9, 20]
    ids, scores = torch.tensor([prompt]), torch.from_numpy(logits)[None]
    asked = SamplingParams(max_tokens=9, repetition_penalty=1.3)
    assert law.edited(logits, asked, prompt[:2], prompt[2:]) == pytest.approx(
        RepetitionPenaltyLogitsProcessor(1.3)(ids, scores)[0].numpy()
    )
    cut = MinPLogitsWarper(0.1)(ids, TemperatureLogitsWarper(0.8)(ids, scores)).softmax(dim=-1)[0]
    assert law.processed(logits, 0.8, min_p=0.1) == pytest.approx(cut.numpy())


def test_presence_and_frequency_count_the_text_and_not_the_prompt() -> None:
    asked = SamplingParams(max_tokens=9, presence_penalty=1.0, frequency_penalty=0.5)
    row = law.edited(np.zeros(5), asked, prompt=[0, 0, 1], text=[1, 2, 2])
    assert row.tolist() == [0, -1.5, -2, 0, 0]


def test_an_end_waits_for_min_tokens_drafted_ones_counted_and_gives_way_where_nothing_else_is_left() -> None:
    asked = SamplingParams(max_tokens=9, min_tokens=3, stop_tokens=(4,))
    for text, banned in (([], True), ([0, 0], True), ([0, 0, 0], False)):
        row = law.edited(np.zeros(8), asked, [5], text, end_tokens=ENDS)
        assert [token for token in range(8) if row[token] == -np.inf] == ([1, 4, 7] if banned else [])
    only_ends = np.isin(np.arange(8), [1, 4])
    row = law.edited(np.zeros(8), asked, [5], [], end_tokens=ENDS, grammar=only_ends)
    assert (row > -np.inf).tolist() == only_ends.tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("certain", [True, False])
def test_a_request_with_nothing_left_to_draw_ends_with_a_sentence(temperature: float, certain: bool) -> None:
    """At the row where the round arrives; behind a rejected draft such a row is nobody's trouble."""
    size = 4
    everything, nothing = packed(np.ones(size, dtype=bool)), packed(np.zeros(size, dtype=bool))
    logits = torch.zeros(2, size)
    logits[:, 2] = 1e4
    for drafted, fault in ((2, True), (size - 1, False)):
        probs = None if certain or temperature == 0 else torch.full((1, size), 1 / size)
        claim = Claim(
            Draft([drafted], probs),
            SamplingParams(max_tokens=4, temperature=temperature),
            [0],
            allowed=torch.stack([everything, nothing]),
        )
        (verdict,) = verify(logits, [claim])
        assert (verdict.fault is not None) == fault
        assert verdict.refused == fault
        assert fault or verdict.token == 2


EDITED = {
    "penalties": {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 1.0},
    "bias and bans": {"logit_bias": {0: 1.0, 1: -100.0}, "banned_tokens": (3,), "presence_penalty": 1.0},
    "allowed": {"allowed_tokens": (0, 2, 3), "frequency_penalty": 0.5},
    "min_tokens": {"min_tokens": 3, "stop_tokens": (2,), "presence_penalty": -1.0},
    "all, cut": {
        "temperature": 0.8,
        "min_p": 0.1,
        "top_k": 3,
        "top_p": 0.95,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.75,
        "min_tokens": 2,
        "logit_bias": {1: 2.0},
    },
    "greedy": {"temperature": 0.0, "frequency_penalty": 1.5},
}


@pytest.mark.parametrize("changes", EDITED.values(), ids=EDITED.keys())
def test_a_round_over_edited_rows_has_the_joint_law_of_the_target(changes: dict[str, object]) -> None:
    """All drafts x all outcomes. The logits are the same everywhere: only the edits, by each row's own prefix, differ.

    p is the reference's for the target, and what the batched code makes of the rows for the round.
    """
    size, k, prompt, text, end = 4, 2, [3], [0], (1,)
    asked = SamplingParams(max_tokens=9, **changes)
    target, draft = np.random.default_rng(4).normal(size=(2, size)) * 1.5
    prefixes = [t for depth in range(k + 1) for t in product(range(size), repeat=depth)]
    edits = Edits(asked, prompt, end, text)

    def exact(raw: np.ndarray, prefix: tuple[int, ...]) -> law.Law:
        row = law.edited(raw, asked, prompt, [*text, *prefix], end_tokens=end)
        return law.processed(row, asked.temperature, asked.top_k, asked.top_p, asked.min_p)

    def fast(raw: np.ndarray) -> law.TreeOfLaws:
        rows = edit(torch.from_numpy(raw).repeat(len(prefixes), 1), [Row(edits, list(t)) for t in prefixes])
        if asked.temperature == 0:
            return {t: law.one_hot(int(row.argmax()), size) for t, row in zip(prefixes, rows, strict=True)}
        laws = probabilities(rows, RowParams.of([asked] * len(prefixes), rows.device)).double().numpy()
        return dict(zip(prefixes, laws, strict=True))

    p = {prefix: exact(target, prefix) for prefix in prefixes}
    assert len({tuple(row) for row in p.values()}) > 1, "no edit looked at its prefix"
    wanted = target_joint(p, k, size)
    mine, theirs = fast(target), fast(draft)
    inner = {prefix: own for prefix, own in theirs.items() if len(prefix) < k}
    for outcomes in (
        law.round_law(mine, theirs, k, size),
        block_law(mine, inner, size),
        tree_law(mine, theirs, [-1, -1, 0, 0], size),
    ):
        got = extended(outcomes, p, k, size)
        assert got.keys() <= wanted.keys()
        for outcome, mass in wanted.items():
            assert got.get(outcome, 0.0) == pytest.approx(mass, abs=5e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(sampling, min_size=1, max_size=4), st.integers(0, 10**6))
def test_rounds_over_edited_rows_are_decided_as_by_the_reference(
    asked: list[SamplingParams], seed: int
) -> None:
    """Each drafted token as the target would say it, or another one; token by token and with the same coins."""
    rng = np.random.default_rng(seed)
    claims, blocks, wanted = [], [], []
    for params in asked:
        rows = rng.normal(size=(int(rng.integers(1, 5)), V)).astype(np.float32) * 3
        prompt, text = rng.integers(V, size=5).tolist(), rng.integers(V, size=3).tolist()
        positions = len(prompt) + len(text) + np.arange(len(rows))
        coins = uniforms(np.full(len(rows), params.seed, dtype=np.uint64), positions, Purpose.SAMPLE)
        drafted: list[int] = []
        laws = []
        for row, coin in zip(rows, coins, strict=True):
            mine = law.edited(row, params, prompt, [*text, *drafted], end_tokens=ENDS)
            if mine.max() == -np.inf:
                break  # what is left to draw is another test's matter
            laws.append(law.processed(mine, params.temperature, params.top_k, params.top_p, params.min_p))
            drafted.append(law.draw(laws[-1], coin) if rng.random() < 0.7 else int(rng.integers(V)))
        if laws:
            drafted = drafted[: len(laws) - 1]
            wanted.append(law.verify_certain(laws, drafted, coins.tolist()))
            edits = Edits(params, prompt, ENDS, text)
            claims.append(Claim(Draft(drafted), params, prompt, text, edits=edits))
            blocks.append(rows[: len(laws)])
    if claims:
        verdicts = verify(torch.from_numpy(np.concatenate(blocks)), claims)
        assert [(v.accepted, v.token) for v in verdicts] == wanted


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 12), min_size=1, max_size=4), st.booleans())
def test_logprobs_rank_and_name_tokens_with_the_lower_id_first_among_equals(
    seed: int, tops: list[int], flat: bool
) -> None:
    rng = np.random.default_rng(seed)
    rows = np.zeros((len(tops), 9)) if flat else np.round(rng.normal(size=(len(tops), 9)) * 2)
    rows[:, 4] = -np.inf
    chosen = [int(rng.choice([0, 3, 8])) for _ in tops]
    params = [SamplingParams(max_tokens=1, temperature=float(rng.choice([0.0, 0.5]))) for _ in tops]
    laws = at_temperature(torch.from_numpy(rows).bfloat16(), params)
    for row, asked, token, top, got in zip(
        rows, params, chosen, tops, logprobs(laws, chosen, tops), strict=True
    ):
        with np.errstate(divide="ignore"):
            exact = np.log(law.processed(row, asked.temperature or 1.0))
        falling = [t for t in np.argsort(-row, kind="stable").tolist() if t != 4]
        assert [t for t, _ in got.top] == falling[:top]
        assert [v for _, v in got.top] == pytest.approx(exact[falling[:top]], abs=1e-5)
        assert (got.token, got.rank) == (token, falling.index(token) + 1)
        assert got.logprob == pytest.approx(exact[token], abs=1e-5)
