"""Where a text ends: end of sequence, stop strings and lengths inside an accepted prefix; refusals and cancels."""

from dataclasses import replace

import pytest
from msgspec import structs

from engine.api import DraftKind
from engine.core import Engine
from policies.settings import PolicySettings
from tests.engine.conftest import MakeEngine, finish, generate, request
from tests.tiny import VOCABULARY, make_tokenizer

PROMPT = [9, 8, 7, 9, 8, 7, 9, 8]
TOKENIZER = make_tokenizer()


@pytest.fixture
def certain(make_engine: MakeEngine) -> Engine:
    """Every draft is accepted whole: the draft is the target."""
    return make_engine("layer-skip", k=5, skip=())


def text_of(engine: Engine, **sampling: object) -> list[int]:
    return generate(engine, request("a", PROMPT, **sampling))["a"].tokens


def test_end_of_sequence_inside_an_accepted_prefix_discards_the_rest(certain: Engine) -> None:
    whole = text_of(certain)
    # commits of 6: a new token within the first accepted run, but not at its end
    end = next(token for at, token in enumerate(whole[:5]) if at >= 2 and token not in whole[:at])
    certain._entrance._loaded = replace(certain._loaded, end_tokens=frozenset([end]))
    output = generate(certain, request("a", PROMPT, ignore_eos=False))["a"]
    assert output.tokens == whole[: whole.index(end) + 1]
    assert output.finish == "stop"
    assert sum(output.report.accepted) < len(output.tokens), "what lies behind the end is no evidence"


def test_a_stop_string_inside_an_accepted_prefix_ends_the_text_there(certain: Engine) -> None:
    whole = text_of(certain)
    stop = TOKENIZER.decode(whole[4:6], skip_special_tokens=True)
    output = generate(certain, request("a", PROMPT, stop=(stop,)))["a"]
    assert output.finish == "stop"
    text = TOKENIZER.decode(output.tokens, skip_special_tokens=True)
    assert stop in text
    assert stop not in TOKENIZER.decode(output.tokens[:-1], skip_special_tokens=True)


@pytest.mark.parametrize("min_tokens", [0, 5, 6])
def test_a_stop_string_ends_the_text_only_if_a_token_behind_min_tokens_completes_it(
    certain: Engine, min_tokens: int
) -> None:
    """The stop string is the text of tokens 5 and 6 of a loop: it comes again."""
    loop = {
        "allowed_tokens": (20, 21, 22),
        "frequency_penalty": 2.0,
        "logit_bias": {20: 90.0, 21: 89.0, 22: 88.0},
    }
    whole = text_of(certain, **loop)
    stop = TOKENIZER.decode(whole[4:6], skip_special_tokens=True)
    output = generate(certain, request("a", PROMPT, stop=(stop,), min_tokens=min_tokens, **loop))["a"]
    ends = [n for n in range(1, 24) if TOKENIZER.decode(whole[:n]).endswith(stop)]
    assert output.tokens == whole[: next(n for n in ends if n > min_tokens)]
    assert output.finish == "stop"


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_a_stop_token_inside_an_accepted_prefix_ends_the_text_with_it(
    certain: Engine, ignore_eos: bool
) -> None:
    whole = text_of(certain)
    stop = next(token for at, token in enumerate(whole[:5]) if at >= 2 and token not in whole[:at])
    changes = {"stop_tokens": (stop,), "ignore_eos": ignore_eos, "logprobs": 0}
    output = generate(certain, request("a", PROMPT, **changes))["a"]
    assert output.tokens == whole[: whole.index(stop) + 1]
    assert [each.token for each in output.logprobs] == output.tokens
    assert output.finish == "stop"


@pytest.mark.parametrize("wanted", [1, 2, 6, 7])
def test_length_is_kept_to_the_token(certain: Engine, wanted: int) -> None:
    output = generate(certain, request("a", PROMPT, max_tokens=wanted))["a"]
    assert len(output.tokens) == wanted
    assert output.finish == "length"
    assert output.report.tokens == wanted


@pytest.mark.parametrize(
    ("prompt", "changes", "sentence"),
    [
        ([], {}, "the prompt is empty"),
        ([5], {"max_tokens": 0}, "must be at least 1"),
        ([5] * 500, {"max_tokens": 20}, "together more than the context of 512"),
        ([5, VOCABULARY], {}, "outside the vocabulary"),
        ([5], {"temperature": -1.0}, "temperature is -1.0"),
        ([5], {"temperature": float("nan")}, "temperature is nan"),
        ([5], {"top_p": 0.0}, "top_p is 0.0"),
        ([5], {"top_k": -1}, "top_k is -1"),
        ([5], {"seed": -1}, "seed is -1"),
        ([5], {"stop": ("",)}, "a stop string is empty"),
        ([5], {"k": -1}, "k is -1"),
        ([5], {"min_p": 1.5}, "min_p is 1.5"),
        (
            [5],
            {"min_tokens": 25},
            "min_tokens is 25: it must be at least 0 and at most max_tokens, which is 24",
        ),
        ([5], {"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ([5], {"presence_penalty": float("nan")}, "presence_penalty is nan"),
        ([5], {"frequency_penalty": 2.5}, "frequency_penalty is 2.5"),
        ([5], {"logit_bias": {9: float("inf")}}, "logit_bias of token 9 is inf"),
        ([5], {"logit_bias": {VOCABULARY: 1.0}}, f"logit_bias has token {VOCABULARY}, which is outside"),
        ([5], {"allowed_tokens": (4, -1)}, "allowed_tokens has token -1, which is outside"),
        ([5], {"banned_tokens": (999,)}, "banned_tokens has token 999, which is outside"),
        ([5], {"stop_tokens": (999,)}, "stop_tokens has token 999, which is outside"),
        ([5], {"allowed_tokens": ()}, "allowed_tokens leaves no token to draw"),
        ([5], {"allowed_tokens": (4,), "banned_tokens": (4,)}, "allowed_tokens leaves no token to draw"),
        ([5], {"banned_tokens": tuple(range(VOCABULARY))}, "leave no token to draw"),
        ([5], {"logprobs": 21}, "logprobs is 21: it must be at least 0 and at most 20"),
        ([5], {"prompt_logprobs": -1}, "prompt_logprobs is -1"),
    ],
)
def test_a_request_that_cannot_run_is_answered(
    make_engine: MakeEngine, prompt: list[int], changes: dict, sentence: str
) -> None:
    engine = make_engine()
    output = generate(engine, request("bad", prompt, **changes), request("good", [5]))
    assert output["bad"].finish == "error"
    assert sentence in output["bad"].error
    assert output["good"].finish == "length"


def test_a_request_larger_than_the_pool_is_refused_not_awaited(make_engine: MakeEngine) -> None:
    engine = make_engine(kv_bytes=1 << 15)
    output = generate(engine, request("big", [5] * 200, max_tokens=100))["big"]
    assert "raise engine.kv_mib" in output.error


def test_more_requests_than_blocks_wait_and_all_finish(make_engine: MakeEngine) -> None:
    """A pool for about two requests serves eight, in order, each whole."""
    engine = make_engine(kv_bytes=1 << 16)
    outputs = generate(engine, *(request(str(i), PROMPT, max_tokens=24) for i in range(8)))
    assert all(len(o.tokens) == 24 for o in outputs.values())
    assert list(outputs) == [str(i) for i in range(8)]


def test_cancel_frees_everything_at_any_moment(make_engine: MakeEngine) -> None:
    """Waiting, in prefill, and while decoding; and a request that is not there is ignored."""
    engine = make_engine("layer-skip", max_running=2, max_batch_tokens=16)
    for name in "abc":
        engine.submit(request(name, [5] * 40))
    engine.cancel("c")  # waiting
    engine.step()
    engine.cancel("a")  # in prefill
    for _ in range(6):
        engine.step()
    engine.cancel("b")  # decoding
    engine.cancel("never heard of")
    assert finish(engine)["b"].finish == "cancelled"


def test_a_fault_in_the_models_rows_ends_its_request_only(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine("none")
    run = engine._runner.run

    def poisoned(forward, batch, taps):
        logits = run(forward, batch, taps).clone()
        if len(batch.spans) == 2:
            logits[0] = float("nan")
        return logits

    engine.submit(request("a", PROMPT))
    engine.submit(request("b", PROMPT))
    monkeypatch.setattr(engine._runner, "run", poisoned)
    outputs = finish(engine)
    assert outputs["a"].finish == "error"
    assert "not finite" in outputs["a"].error
    assert outputs["b"].finish == "length"


@pytest.mark.parametrize(
    "changes", [{"top_k": 2**63}, {"temperature": 1e-40}, {"temperature": 1e-320}, {"seed": 2**64 - 1}]
)
def test_extreme_values_are_served(make_engine: MakeEngine, changes: dict) -> None:
    """A temperature next to nothing is greedy; a top_k beyond any vocabulary keeps all."""
    greedy = generate(make_engine("none"), request("a", PROMPT))["a"].tokens
    sampling = {"temperature": 1.0, **changes}
    for kind in ("none", "layer-skip"):
        output = generate(make_engine(kind), request("a", PROMPT, **sampling))["a"]
        assert output.finish == "length"
        if sampling["temperature"] < 1e-30:
            assert output.tokens == greedy


def test_what_a_fault_leaves_in_the_kv_reaches_nobody(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a request that ended in values that are not numbers are clean for the next owner."""
    engine = make_engine("none", kv_bytes=1 << 16)
    wanted = generate(engine, request("a", PROMPT * 4))["a"].tokens
    run = engine._runner.run

    def poisoned(forward, batch, taps):
        for store in (*engine._memory.keys.values(), *engine._memory.values.values()):
            store[batch.slots] = float("nan")
        return run(forward, batch, taps) * float("nan")

    monkeypatch.setattr(engine._runner, "run", poisoned)
    assert generate(engine, request("bad", PROMPT * 6))["bad"].finish == "error"
    monkeypatch.setattr(engine._runner, "run", run)
    assert generate(engine, request("a", PROMPT * 4))["a"].tokens == wanted


@pytest.mark.parametrize("kinds", [("eagle",), ("none",)])
def test_what_a_fault_leaves_in_the_keys_of_a_head_reaches_nobody(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, kinds: tuple[DraftKind, ...]
) -> None:
    """Whether or not it drafts when the fault comes."""
    engine = make_engine("eagle", kv_bytes=1 << 16)
    (head,) = engine._roster.proposers
    engine.configure(PolicySettings(), structs.replace(engine._draft_settings, kinds=kinds))

    def poisoned(forward, batch, taps):
        for stack in head._memory._stacks:
            stack[:, batch.slots] = float("nan")
        return run(forward, batch, taps) * float("nan")

    run = engine._runner.run
    monkeypatch.setattr(engine._runner, "run", poisoned)
    assert generate(engine, request("bad", PROMPT * 6))["bad"].finish == "error"
    assert all(stack.isfinite().all() for stack in head._memory._stacks)
