"""Encoder-decoder models: the text is transformers' own, with drafts and without, alone and in company."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from engine.api import DraftSettings, Launch
from engine.attention.sourced import SourcedKernels
from engine.batch import Span
from engine.budget import budget
from engine.draft.errors import DraftSettingsError
from engine.draft.model_part import ModelPart, load_model
from engine.draft.registry import Parts, load_parts
from engine.kv.memory import KVMemory
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.loader import LoadedModel, load
from engine.model.runner import Runner
from engine.model.support import UnsupportedModelError
from engine.model.t5 import T5Forward
from engine.model.t5_check import check_t5, plain_t5
from tests.engine.conftest import MakeEngine, finish, generate, request
from tests.tiny import VOCABULARY, make_tokenizer
from tests.tiny_t5 import KINDS, make_t5_dir

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)


def words(count: int) -> list[int]:
    return [int(token) for token in RNG.integers(3, VOCABULARY, size=count)]


PROMPTS = {"copy": words(6) * 4, "short": [7], "random": words(37), "block": words(16)}


def silent(_: str) -> None:
    """Says nothing."""


class Family:
    """A kind's directory, the model as the engine runs it and as transformers does, and a draft that is near it."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path = make_t5_dir(path / "target", kind)
        self.model = load(self.path, torch.float32, CPU, silent)
        self.near = load(make_t5_dir(path / "near", kind, noise=0.01), torch.float32, CPU, silent)
        self.reference = AutoModelForSeq2SeqLM.from_pretrained(self.path, dtype=torch.float32).eval()
        self.reference.generation_config.eos_token_id = None

    def greedy(self, prompt: list[int], tokens: int = 24) -> list[int]:
        ids = torch.tensor([prompt])
        out = self.reference.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False
        )
        return out[0, 1:].tolist()

    @torch.inference_mode()
    def logits(self, prompt: list[int], text: list[int]) -> Tensor:
        """[T, V]"""
        ids, decoder_ids = torch.tensor([prompt]), torch.tensor([[*self.model.start, *text]])
        return self.reference(input_ids=ids, decoder_input_ids=decoder_ids, use_cache=False).logits[0]


@pytest.fixture(scope="module", params=KINDS)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family(tmp_path_factory.mktemp("t5"), request.param)


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family(tmp_path_factory.mktemp("t5"), "t5-v1.1")


@pytest.mark.parametrize("kind", ["none", "ngram", "model"])
def test_greedy_text_equals_transformers_alone_and_in_a_mixed_batch(
    make_engine: MakeEngine, family: Family, kind: str
) -> None:
    """Prompts are encoded beside others' decoding, and whole, also where they have more rows than a step."""
    plain = {name: family.greedy(prompt) for name, prompt in PROMPTS.items()}
    engine = make_engine(kind, model=family.model, drafts=family.near, max_batch_tokens=24)
    for name, prompt in PROMPTS.items():
        assert generate(engine, request(name, prompt))[name].tokens == plain[name]
    outputs = generate(
        engine,
        request("copy", PROMPTS["copy"]),
        request("noise", PROMPTS["random"], temperature=1.0, seed=5),
        request("short", PROMPTS["short"], speculate=False),
        request("random", PROMPTS["random"], k=7),
        request("block", PROMPTS["block"], k=0),
    )
    assert {name: outputs[name].tokens for name in plain} == plain
    assert outputs["short"].report.prompt_tokens == 1
    assert outputs["short"].report.tokens == 24


def test_texts_depend_on_their_prompts_and_do_not_all_repeat_one_token(t5: Family) -> None:
    """Equality would be idle otherwise."""
    texts = [t5.greedy(prompt) for prompt in PROMPTS.values()]
    assert len({tuple(text) for text in texts}) == len(texts)
    assert sorted(len(set(text)) for text in texts)[-2] > 10


def test_rows_of_chains_and_trees_equal_plain_ones(t5: Family) -> None:
    """A rejected draft is rolled back; then a chain, a tree, a long text computed anew and a new prompt at once."""
    long, short, anew, text = words(23), words(5), words(9), words(41)
    tree, parents = words(4), [-1, 0, 0, -1]
    pool = BlockPool(64, 4)
    runner = Runner(KVMemory(t5.model.shapes, pool.total, 4, torch.float32, CPU), SourcedKernels())
    a, b, c = (BlockTable(pool, source=len(prompt)) for prompt in (long, short, anew))

    def run(*spans: Span) -> Tensor:
        for span in spans:
            span.table.reserve(span.end)
        return runner.run(t5.model.forward, runner.pack(spans))

    start = list(t5.model.start)
    run(Span(a, 0, long + start + text[:7], 1), Span(b, 0, short + start + words(3), 1))
    a.commit(23 + 1 + 5)
    b.commit(5 + 1)
    got = run(
        Span(a, 29, text[5:9], 4),
        Span(b, 6, [text[0], *tree], 5, parents),
        Span(c, 0, anew + start + text, 2),
    )
    branches = [[text[0]], [text[0], tree[0]], [text[0], *tree[:2]], [text[0], tree[0], tree[2]]]
    wanted = torch.cat(
        [
            t5.logits(long, text[:9])[-4:],
            *(t5.logits(short, branch)[-1:] for branch in [*branches, [text[0], tree[3]]]),
            t5.logits(anew, text)[-2:],
        ]
    )
    assert (got - wanted).abs().max() <= 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("k", [1, 4])
def test_a_seeds_text_does_not_depend_on_what_was_looked_up(
    make_engine: MakeEngine, t5: Family, k: int
) -> None:
    """Certain drafts: the target draws its own tokens, from rows that equal plain decoding's in any company."""
    asked = [
        request(str(seed), PROMPTS["copy"], temperature=0.4, top_k=4, seed=seed, repetition_penalty=0.5)
        for seed in range(4)
    ]
    plain = {each.id: generate(make_engine("none", model=t5.model), each)[each.id].tokens for each in asked}
    drafted = generate(make_engine("ngram", model=t5.model, k=k), *asked)
    assert {name: output.tokens for name, output in drafted.items()} == plain
    assert sum(sum(output.report.accepted) for output in drafted.values()) > 0


def test_a_draft_that_is_the_target_is_accepted_and_a_broken_one_changes_nothing(
    make_engine: MakeEngine, t5: Family
) -> None:
    """Layer skip that leaves nothing out, and all; the latter's rejected tokens are rolled back in every round."""
    plain = t5.greedy(PROMPTS["random"])
    same = make_engine("layer-skip", k=4, skip=(), model=t5.model)
    broken = make_engine("layer-skip", k=4, skip=(0, 1, 2), model=t5.model)
    kept = generate(same, request("a", PROMPTS["random"]))["a"]
    lost = generate(broken, request("a", PROMPTS["random"]))["a"]
    assert kept.tokens == lost.tokens == plain
    assert kept.report.examined == kept.report.accepted
    assert lost.report.accepted[0] < lost.report.examined[0] / 2


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_a_smaller_model_like_the_target_is_always_right(
    make_engine: MakeEngine, t5: Family, temperature: float
) -> None:
    """p = q in all that the draft has keys for: several texts of a prompt, prompts that begin alike in the same blocks,
    longer ones than are read in a step, and texts that were not drafted for during ten steps.
    """
    engine = make_engine("model", model=t5.model, drafts=t5.model, k=4)
    kinds, policy = DraftSettings(kinds=("model",), ngram_min=1, ngram_max=3), engine._launch.policy
    prompt = PROMPTS["random"]
    reports = []
    for name, asked, n in (("n", prompt, 3), ("other", [*prompt[:-1], 9], 1), ("again", prompt, 1)):
        engine.submit(request(name, asked, n=n, temperature=temperature, max_tokens=40))
        step = 0
        while engine.has_work:
            engine.configure(replace(policy, kind="off") if 2 <= step < 12 else policy, kinds)
            reports += [output.report for output in engine.step().outputs if output.report]
            step += 1
    assert len(reports) == 5
    assert all(report.k_histogram[0] >= 10 for report in reports)
    assert all(report.examined == report.accepted and report.drafted > 0 for report in reports)


def test_a_broken_smaller_model_changes_nothing_and_shows_in_acceptance(
    make_engine: MakeEngine, t5: Family, tmp_path: Path
) -> None:
    small = {"d_model": 32, "num_layers": 1, "num_decoder_layers": 2, "num_heads": 2}
    broken = load(make_t5_dir(tmp_path, "t5", seed=9, **small), torch.float32, CPU, silent)
    asked = [request(name, prompt) for name, prompt in PROMPTS.items()]
    shares = {}
    for name, draft in (("broken", broken), ("near", t5.near)):
        outputs = generate(make_engine("model", model=t5.model, drafts=draft), *asked)
        assert {each: output.tokens for each, output in outputs.items()} == {
            each: t5.greedy(prompt) for each, prompt in PROMPTS.items()
        }
        reports = [output.report for output in outputs.values()]
        shares[name] = sum(r.accepted[0] for r in reports) / sum(r.examined[0] for r in reports)
    assert shares["near"] > 0.4
    assert shares["broken"] < 0.2


def test_a_smaller_model_of_another_kind_is_refused(t5: Family, tiny_dir: Path, tiny: LoadedModel) -> None:
    def loaded(target: LoadedModel, draft: Path, vocabulary: str = "same") -> ModelPart:
        kinds = DraftSettings(kinds=("model",), model_path=str(draft), vocabulary=vocabulary)
        return load_model(kinds, target, silent)

    assert loaded(t5.model, t5.path).draft.start == t5.model.start
    for target, draft in ((t5.model, tiny_dir), (tiny, t5.path)):
        with pytest.raises(DraftSettingsError, match="one has an encoder and the other has not"):
            loaded(target, draft)
    with pytest.raises(DraftSettingsError, match="reads the target's own tokens"):
        loaded(t5.model, t5.path, "mapped")


def test_texts_of_a_request_share_its_source_and_prompts_share_nothing(
    make_engine: MakeEngine, t5: Family
) -> None:
    """Prompts that begin alike would have the same first blocks, but what an encoder makes of them differs."""
    prompt, other = PROMPTS["random"], [*PROMPTS["random"][:-1], 9]
    engine = make_engine("ngram", model=t5.model)
    first = generate(engine, request("n", prompt, n=3), request("other", other))
    again = generate(engine, request("again", prompt))["again"]
    assert [first[name].tokens for name in ("n", "n#1", "n#2")] == [t5.greedy(prompt)] * 3
    assert first["n#1"].report.cached_tokens == len(prompt)
    assert first["other"].tokens == t5.greedy(other)
    assert again.tokens == first["n"].tokens
    assert again.report.cached_tokens == 0


def test_a_text_that_was_preempted_goes_on_as_if_nothing_had_been(
    make_engine: MakeEngine, t5: Family
) -> None:
    """Its prompt is encoded again, and its text computed behind it in the same forward."""
    block_bytes = 4 * t5.model.bytes_per_position
    engine = make_engine("ngram", model=t5.model, kv_bytes=30 * block_bytes)
    for name in ("random", "copy", "block"):
        engine.submit(request(name, PROMPTS[name], max_tokens=40))
    preempted, texts = 0, {name: [] for name in ("random", "copy", "block")}
    while engine.has_work:
        report = engine.step()
        preempted += report.preempted
        for output in report.outputs:
            texts[output.id] += output.tokens
    assert preempted
    assert texts == {name: t5.greedy(PROMPTS[name], 40) for name in texts}


def test_a_cancelled_text_gives_all_its_blocks_back(make_engine: MakeEngine, t5: Family) -> None:
    engine = make_engine("ngram", model=t5.model)
    engine.submit(request("a", PROMPTS["random"], max_tokens=200))
    engine.step()
    assert engine.kv_usage().used >= -(-len(PROMPTS["random"]) // 4)
    engine.cancel("a")
    assert finish(engine)["a"].finish == "cancelled"


def test_a_stop_string_ends_a_text_within_a_draft(make_engine: MakeEngine, t5: Family) -> None:
    plain, tokenizer = t5.greedy(PROMPTS["random"]), make_tokenizer()
    stop = tokenizer.decode(plain[8:10])
    at = next(n for n in range(1, 25) if stop in tokenizer.decode(plain[:n]))
    engine = make_engine("layer-skip", k=6, skip=(), model=t5.model)
    output = generate(engine, request("a", PROMPTS["random"], stop=(stop,), continues=False))["a"]
    assert (output.tokens, output.finish) == (plain[:at], "stop")


def test_what_an_encoder_decoder_model_cannot_do_is_refused_by_a_sentence(
    make_engine: MakeEngine, t5: Family
) -> None:
    engine = make_engine(model=t5.model, max_context=64)
    outputs = generate(
        engine, request("a", [5], prompt_logprobs=1), request("b", PROMPTS["random"], max_tokens=40)
    )
    assert "read by an encoder" in outputs["a"].error
    assert "more than the context of 64" in outputs["b"].error
    with pytest.raises(UnsupportedModelError, match="overflows float16"):
        load(t5.path, torch.float16, CPU, silent)
    with pytest.raises(UnsupportedModelError, match="plain weights only"):
        load(t5.path, torch.float32, CPU, silent, quantization="int8")
    with pytest.raises(DraftSettingsError, match='"eagle" go on from what a decoder-only target'):
        load_parts(DraftSettings(kinds=("ngram", "eagle")), t5.model, silent)


def test_its_context_is_what_the_operator_says(t5: Family) -> None:
    """There is no end of positions. What a head sees of the longest prompt at once has room in the budget."""
    assert [t5.model.context(asked) for asked in (0, 64, 9000)] == [1024, 64, 9000]
    short, long = (
        budget(Launch(model_path="", max_context=n), replace(t5.model, row_width=0), Parts()).verify
        for n in (100, 200)
    )
    assert long - short >= t5.model.encoder_heads * (200**2 - 100**2) * t5.model.dtype.itemsize


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_passes_the_self_check(tmp_path: Path, kind: str) -> None:
    """With packed linears, where the machine has them."""
    said: list[str] = []
    load(make_t5_dir(tmp_path, kind), torch.bfloat16, CPU, said.append)
    assert said[-1].startswith("self-check passed")


@pytest.mark.parametrize("wrong", ["bias", "source"])
def test_the_self_check_finds_a_wrong_decoder(
    t5: Family, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = T5Forward(t5.reference)
    if wrong == "bias":
        forward._layers = [replace(layer, bias=layer.bias.roll(1, dims=1)) for layer in forward._layers]
    else:
        monkeypatch.setattr("engine.attention.sourced.SourcedAttention.write_source", lambda *_: None)
    with pytest.raises(UnsupportedModelError, match="the self-check failed"):
        check_t5(t5.reference, forward, SourcedKernels(), plain_t5(t5.reference))
