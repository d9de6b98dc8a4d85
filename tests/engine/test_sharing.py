"""Texts share blocks, batches and a pool that is too small, and none of it shows in what they say."""

import numpy as np
import pytest
import torch

from engine.api import Grammar, Request
from engine.core import Engine
from engine.model.loader import LoadedModel
from engine.sampling.rng import text_seed
from engine.sequence import text_id
from policies.base import Reason
from tests.engine.conftest import MakeEngine, finish, generate, request
from tests.tiny import VOCABULARY

RNG = np.random.default_rng(3)


def tokens(count: int) -> list[int]:
    return [int(t) for t in RNG.integers(3, VOCABULARY, size=count)]


COMMON = tokens(17)


def crowd(*, sampled: bool) -> list[Request]:
    """Sixteen requests, some of several texts, half of them with a common beginning."""
    prompts = [COMMON + tokens(i % 4 + 1) for i in range(8)] + [tokens(4 * i + 1) for i in range(8)]
    return [
        request(
            f"r{i}",
            prompt,
            n=(1, 1, 3)[i % 3] if sampled else 1 + i % 2,
            temperature=0.9 if sampled and i % 4 else 0.0,
            top_p=0.95,
            seed=i,
            max_tokens=(24, 9, 17)[i % 3],
        )
        for i, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize(
    ("kind", "sampled"), [("none", True), ("ngram", True), ("layer-skip", False)]
)  # sampled text of layer skip follows the same law, but depends on k
def test_a_text_does_not_depend_on_who_shares_batch_blocks_and_pool(
    make_engine: MakeEngine, kind: str, sampled: bool
) -> None:
    """Prefix cache, several texts, preemption and drafts cut for want of blocks, against each request alone."""
    requests = crowd(sampled=sampled)
    roomy = make_engine(kind, prefix_cache=False)
    alone = {name: output for each in requests for name, output in generate(roomy, each).items()}
    tight = make_engine(kind, kv_bytes=80 << 10, max_batch_tokens=32)
    preempted, reasons = 0, set()
    step = tight.step

    def counted() -> object:
        nonlocal preempted
        report = step()
        preempted += report.preempted
        reasons.update(r.reason for r in report.rounds)
        return report

    tight.step = counted
    together = generate(tight, *requests)
    assert {name: o.tokens for name, o in together.items()} == {name: o.tokens for name, o in alone.items()}
    assert preempted > 0
    assert sum(o.report.cached_tokens > 0 for o in together.values()) > len(requests) // 4
    assert kind == "none" or Reason.NO_ROOM in reasons


def test_each_text_of_a_request_is_that_of_its_own_seed(make_engine: MakeEngine) -> None:
    """Text i says what a request with the seed derived for it says; all of them differ."""
    prompt, sampling = tokens(10), {"temperature": 1.0, "max_tokens": 12}
    texts = generate(make_engine(), request("a", prompt, n=4, seed=7, **sampling))
    seeds = [7, *(text_seed(7, i) for i in range(1, 4))]
    single = [
        generate(make_engine(), request("a", prompt, seed=seed, **sampling))["a"].tokens for seed in seeds
    ]
    assert [texts[text_id("a", i)].tokens for i in range(4)] == single
    assert len({tuple(text) for text in single}) == 4
    assert all(texts[text_id("a", i)].report.tokens == 12 for i in range(4))


@pytest.mark.parametrize("length", [1, 7, 8, 9])
def test_the_prompt_of_several_texts_is_computed_once(make_engine: MakeEngine, length: int) -> None:
    """Each further text computes one of its rows anew: its last token, whose logits it draws from."""
    engine = make_engine("none", prefix_cache=False)
    engine.submit(request("a", tokens(length), n=3, max_tokens=2))
    rows = []
    while engine.has_work:
        rows.append(engine.step().rows)
    assert sum(rows) == (length + 1) + 2 * (1 + 1)  # the second of two tokens takes a row in each text


def test_cancel_ends_all_texts(make_engine: MakeEngine) -> None:
    """Those that run and those that wait for a place."""
    engine = make_engine(max_running=3)
    engine.submit(request("a", tokens(6), n=3))
    engine.submit(request("b", tokens(6), n=2))
    for _ in range(3):
        engine.step()
    engine.cancel("a")
    engine.cancel("b")
    ended = engine.step().outputs
    assert sorted((o.id, o.index, o.finish) for o in ended) == [
        *(("a", i, "cancelled") for i in range(3)),
        *(("b", i, "cancelled") for i in range(2)),
    ]


def test_more_texts_than_can_run_are_refused(make_engine: MakeEngine) -> None:
    engine = make_engine(max_running=2)
    outputs = generate(engine, request("many", [5], n=3), request("none", [5], n=0), request("two", [5], n=2))
    assert "raise engine.max_running" in outputs["many"].error
    assert "n is 0" in outputs["none"].error
    assert outputs["two"].finish == outputs["two#1"].finish == "length"


def test_a_second_request_finds_what_the_first_computed(make_engine: MakeEngine) -> None:
    """Prompt and text of the first, but for what is not a whole block; its own last token is always computed."""
    engine = make_engine("none")
    prompt = tokens(16)
    first = generate(engine, request("a", prompt, max_tokens=9))["a"]
    assert first.report.cached_tokens == 0
    assert generate(engine, request("b", prompt))["b"].report.cached_tokens == 12
    longer = generate(engine, request("c", prompt + first.tokens + [5]))["c"]
    assert longer.report.cached_tokens == 24
    plain = generate(make_engine("none", prefix_cache=False), request("c", prompt + first.tokens + [5]))["c"]
    assert longer.tokens == plain.tokens
    assert plain.report.cached_tokens == 0


def test_a_request_for_its_prompts_logprobs_takes_no_hit(make_engine: MakeEngine) -> None:
    engine = make_engine("none")
    prompt = tokens(16)
    generate(engine, request("a", prompt))
    assert generate(engine, request("b", prompt, prompt_logprobs=0))["b"].report.cached_tokens == 0


def test_a_prompt_that_is_computed_again_midway_is_judged_once(
    make_engine: MakeEngine, tiny: LoadedModel
) -> None:
    """An older text grows into the blocks that a long prompt has, whose first chunks were judged already."""
    older = request("older", tokens(4), max_tokens=40)
    judged = request("judged", tokens(60), max_tokens=2, prompt_logprobs=2)
    expected = generate(make_engine("none"), judged)["judged"].prompt_logprobs
    tight = make_engine("none", kv_bytes=18 * 4 * tiny.bytes_per_position, max_batch_tokens=4)
    tight.submit(older)
    tight.submit(judged)
    (sequence,) = tight.scheduler.texts("judged")
    while not tight.step().preempted:
        before = len(sequence.prompt_logprobs)
    assert 1 < before < 60, "it was to be preempted midway"
    found = finish(tight)["judged"].prompt_logprobs
    assert [(one.token, one.rank) for one in found[1:]] == [(one.token, one.rank) for one in expected[1:]]


def test_a_request_that_excludes_itself_takes_no_prefix_from_others(make_engine: MakeEngine) -> None:
    """It ends in an error, but not one of the model's."""
    engine = make_engine("none")
    impossible = Grammar("choice", '["no"]')
    stuck = request("stuck", COMMON, grammar=impossible, banned_tokens=tuple(range(VOCABULARY - 1)))
    assert generate(engine, stuck)["stuck"].finish == "error"
    assert generate(engine, request("next", COMMON))["next"].report.cached_tokens == 16


def test_what_a_fault_left_is_not_found(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt whose first chunk was stored as values that are not numbers: the next one computes it anew."""
    engine = make_engine("none", max_batch_tokens=16)
    prompt = tokens(30)
    run = engine._runner.run

    def poisoned(forward: object, batch: object, taps: object) -> torch.Tensor:
        logits = run(forward, batch, taps)
        for store in (*engine._memory.keys.values(), *engine._memory.values.values()):
            store[batch.slots] = float("nan")
        return logits * float("nan")

    monkeypatch.setattr(engine._runner, "run", poisoned)
    assert generate(engine, request("bad", prompt))["bad"].finish == "error"
    monkeypatch.setattr(engine._runner, "run", run)
    assert engine.kv_usage().cached == 0
    assert generate(engine, request("good", prompt))["good"].finish == "length"


def test_a_few_hundred_requests_with_cancels_leave_nothing_behind(make_engine: MakeEngine) -> None:
    """The real engine over the tiny model, in a pool for about two of them."""
    engine = make_engine(kv_bytes=64 << 10, max_running=6, max_batch_tokens=32)
    random = np.random.default_rng(5)
    names = [f"r{i}" for i in range(200)]
    ended: list[tuple[str, int]] = []
    for at, name in enumerate(names):
        prompt = COMMON[: random.integers(1, 17)] + [
            int(t) for t in random.integers(3, 9, size=random.integers(1, 9))
        ]
        n, temperature = int(random.integers(1, 4)), float(random.integers(2))
        engine.submit(
            request(name, prompt, n=n, temperature=temperature, max_tokens=int(random.integers(1, 9)))
        )
        if random.random() < 0.2:
            engine.cancel(names[random.integers(max(at - 6, 0), at + 1)])
        ended += stepped(engine)
    while engine.has_work:
        ended += stepped(engine)
    assert {name for name, _ in ended} == set(names)
    assert len(set(ended)) == len(ended)
    assert finish(engine) == {}


def stepped(engine: Engine) -> list[tuple[str, int]]:
    """The texts that end in one step."""
    outputs = engine.step().outputs
    engine.check_integrity()
    return [(o.id, o.index) for o in outputs if o.finish is not None]
