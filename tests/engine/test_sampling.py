"""Sampling parameters end to end: under speculation as in plain decoding, and both as transformers and law.py say."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.api import Request, StepReport, TokenLogprob
from engine.verify import law
from tests.engine.conftest import MakeEngine, generate, request
from tests.tiny import VOCABULARY

END = 1  # of the tiny models
RNG = np.random.default_rng(3)
COPY = [int(t) for t in np.tile(RNG.integers(3, VOCABULARY, size=5), 5)]
NOISE = [int(t) for t in RNG.integers(3, VOCABULARY, size=21)]
ALLOWED = (*COPY[:5], 2, END, 40, 41)
CASES: dict[str, dict] = {
    "plain": {},
    "repetition": {"repetition_penalty": 1.4},
    "presence": {"presence_penalty": 2.0, "frequency_penalty": 0.5},
    "praise": {"frequency_penalty": -2.0, "repetition_penalty": 0.8},
    "bias": {"logit_bias": {COPY[0]: 8.0, COPY[1]: 7.5, 50: -100.0, 60: -np.inf}, "frequency_penalty": 1.0},
    "allowed": {"allowed_tokens": ALLOWED, "banned_tokens": (40,), "presence_penalty": 1.0},
    "late end": {
        "min_tokens": 9,
        "ignore_eos": False,
        "logit_bias": {END: 100.0, COPY[0]: 90.0, COPY[1]: 89.0},
    },
    "late stop": {"min_tokens": 6, "stop_tokens": (COPY[0],), "logit_bias": {COPY[0]: 100.0}},
}

Rows = Callable[[list[int]], np.ndarray]


@pytest.fixture(scope="module")
def rows(tiny_dir: Path) -> Rows:
    """transformers' logits after each token of a text."""
    model = AutoModelForCausalLM.from_pretrained(tiny_dir, dtype=torch.float32).eval()

    def forward(tokens: list[int]) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.tensor([tokens])).logits[0].double().numpy()

    return forward


def edited(rows: Rows, asked: Request, text: list[int]) -> np.ndarray:
    """[len(text), V]: the edited row that each token of a text was drawn from."""
    raw = rows(asked.prompt + text)[len(asked.prompt) - 1 :]
    return np.array(
        [
            law.edited(raw[i], asked.sampling, asked.prompt, text[:i], end_tokens=[END])
            for i in range(len(text))
        ]
    )


def batch(**changes: object) -> list[Request]:
    """All cases, on prompts that lookup finds something in and on others."""
    return [
        request(name, COPY if i % 2 else NOISE, **{"logprobs": 4, **case, **changes})
        for i, (name, case) in enumerate(CASES.items())
    ]


def same(a: TokenLogprob, b: TokenLogprob) -> bool:
    close = np.allclose([a.logprob, *(v for _, v in a.top)], [b.logprob, *(v for _, v in b.top)], atol=1e-5)
    return close and (a.token, a.rank, [t for t, _ in a.top]) == (b.token, b.rank, [t for t, _ in b.top])


def test_plain_greedy_text_is_the_argmax_of_the_edited_rows(make_engine: MakeEngine, rows: Rows) -> None:
    for name, output in generate(make_engine("none", max_batch_tokens=32), *batch()).items():
        asked = next(r for r in batch() if r.id == name)
        assert edited(rows, asked, output.tokens).argmax(axis=1).tolist() == output.tokens, name
        if name.startswith("late"):
            assert (output.finish, len(output.tokens)) == ("stop", asked.sampling.min_tokens + 1)
        else:
            assert output.finish == "length"


@pytest.mark.parametrize("kind", ["ngram", "layer-skip"])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_drafts_change_neither_edited_greedy_text_nor_its_logprobs(
    make_engine: MakeEngine, kind: str, k: int
) -> None:
    plain = generate(make_engine("none"), *batch())
    drafted = generate(make_engine(kind, k=k, max_batch_tokens=32), *batch())
    assert sum(sum(o.report.accepted) for o in drafted.values()) > 0
    for name, output in plain.items():
        assert drafted[name].tokens == output.tokens, name
        assert drafted[name].finish == output.finish
        assert len(output.logprobs) == len(output.tokens)
        assert all(map(same, drafted[name].logprobs, output.logprobs)), name


@pytest.mark.parametrize("kind", ["ngram", "layer-skip"])
def test_logprobs_are_those_of_the_edited_rows_at_the_requests_temperature(
    make_engine: MakeEngine, rows: Rows, kind: str
) -> None:
    """Sampled, with cuts, which logprobs do not see."""
    asked = batch(temperature=0.7, top_k=20, top_p=0.9, min_p=0.01, seed=11)
    outputs = generate(make_engine(kind, k=4), *asked)
    for each in asked:
        tokens, found = outputs[each.id].tokens, outputs[each.id].logprobs
        with np.errstate(divide="ignore"):
            wanted = np.log([law.processed(row, 0.7) for row in edited(rows, each, tokens)])
        for token, row, logprob in zip(tokens, wanted, found, strict=True):
            assert logprob.token == token
            assert logprob.logprob == pytest.approx(row[token], abs=1e-4)
            assert logprob.rank == 1 + (row > row[token]).sum()
            likeliest = [t for t in np.argsort(-row, kind="stable")[:4] if row[t] > -np.inf]
            assert [t for t, _ in logprob.top] == likeliest
            assert [v for _, v in logprob.top] == pytest.approx(row[likeliest], abs=1e-4)


def test_edited_sampled_text_does_not_depend_on_what_was_looked_up(make_engine: MakeEngine) -> None:
    asked = batch(temperature=0.8, seed=5)
    plain, drafted = generate(make_engine("none"), *asked), generate(make_engine("ngram", k=4), *asked)
    assert {n: o.tokens for n, o in drafted.items()} == {n: o.tokens for n, o in plain.items()}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_drafts_rows_are_edited_as_the_targets(make_engine: MakeEngine, temperature: float) -> None:
    """A draft that is the target is accepted whole, whatever the parameters: both draw from the same rows."""
    outputs = generate(make_engine("layer-skip", k=4, skip=()), *batch(temperature=temperature))
    for name, output in outputs.items():
        report = output.report
        assert report.accepted, name
        assert report.examined == report.accepted, name


def prompt_request(name: str, prompt: list[int], **changes: object) -> Request:
    return request(name, prompt, prompt_logprobs=3, max_tokens=3, logit_bias={7: 5.0}, **changes)


@pytest.mark.parametrize("chunk", [8, 16, 256])
def test_prompt_logprobs_are_those_of_the_models_own_rows(
    make_engine: MakeEngine, rows: Rows, chunk: int
) -> None:
    """Prompts in chunks of many steps, among requests that draft; a prompt of one token has nothing to judge."""
    engine = make_engine("ngram", max_batch_tokens=chunk)
    asked = {"noise": NOISE, "copy": COPY[:17], "short": [5]}
    company = request("company", COPY)
    outputs = generate(engine, company, *(prompt_request(n, p, temperature=0.5) for n, p in asked.items()))
    for name, prompt in asked.items():
        first, *found = outputs[name].prompt_logprobs
        assert first is None
        assert [each.token for each in found] == prompt[1:]
        for row, each in zip(rows(prompt), found, strict=False):
            wanted = np.log(law.processed(row, 1.0))
            assert each.logprob == pytest.approx(wanted[each.token], abs=1e-5)
            assert each.rank == 1 + (wanted > wanted[each.token]).sum()
            assert [t for t, _ in each.top] == np.argsort(-wanted)[:3].tolist()
        assert outputs[name].report.k_histogram.keys() <= {0}
        assert "prompt_logprobs" in outputs[name].report.not_speculated
    assert outputs["company"].report.not_speculated is None
    assert outputs["company"].prompt_logprobs is None


def test_a_request_says_that_it_asked_for_no_drafts(make_engine: MakeEngine) -> None:
    outputs = generate(make_engine(), request("off", COPY, speculate=False), request("zero", COPY, k=0))
    assert all("asked not to be" in o.report.not_speculated for o in outputs.values())


def test_preemption_and_several_texts_leave_edits_and_logprobs_as_they_are(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pool for about two texts of ten: counts of tokens and judged prompts survive being thrown out."""
    asked = [*batch(seed=3, temperature=0.7), prompt_request("judged", NOISE), request("plenty", COPY, n=2)]
    roomy = generate(make_engine("none", prefix_cache=False), *asked)
    tight = make_engine("ngram", k=4, kv_bytes=1 << 16, max_batch_tokens=8)
    step, preempted = tight.step, []

    def watched() -> StepReport:
        report = step()
        preempted.append(report.preempted)
        return report

    monkeypatch.setattr(tight, "step", watched)
    texts = generate(tight, *asked)
    assert sum(preempted) > 0
    for name, output in roomy.items():
        assert texts[name].tokens == output.tokens, name
        assert all(map(same, texts[name].logprobs or [], output.logprobs or [])), name
    found = texts["judged"].prompt_logprobs
    assert all(map(same, found[1:], roomy["judged"].prompt_logprobs[1:]))
    assert len(found) == len(NOISE)


def test_of_several_texts_only_the_first_carries_the_prompts_logprobs(make_engine: MakeEngine) -> None:
    outputs = generate(make_engine(max_batch_tokens=8), prompt_request("a", NOISE, n=3, logprobs=0))
    assert [o.prompt_logprobs is not None for o in outputs.values()] == [
        o.index == 0 for o in outputs.values()
    ]
    assert all(len(o.logprobs) == 3 for o in outputs.values())
