"""What an EAGLE head drafts in an engine is what it would draft reading the whole text anew, whatever went before."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.core import Engine
from engine.draft.base import Ask, Draft
from engine.draft.tree import Grown, Likeliest, grow_trees, of_logits
from engine.heads.formats import Fit, read_eagle
from engine.model.loader import LoadedModel, load
from policies.settings import PolicySettings
from tests.engine.conftest import UNCAPPED, MakeEngine, generate, request
from tests.engine.dense_head import dense, logits_after
from tests.engine.orchard import with_shape
from tests.tiny import VOCABULARY, make_model_dir
from tests.tiny_heads import HIDDEN, LAYERS, eagle_tensors, make_eagle_dir, make_knowing_head

TAPS = [1, 2, 3]  # transformers norms the last of its hidden states


def tokens(count: int, seed: int = 4) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCABULARY, size=count).tolist()


class Watch:
    """Notes what a proposer was asked and what it answered."""

    def __init__(self, engine: Engine) -> None:
        self.seen: list[tuple[list[int], Ask, Draft]] = []
        proposer = engine._roster.proposers[0]
        self._propose = proposer.propose
        proposer.propose = self.propose

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        drafts = self._propose(asks)
        self.seen += [
            (list(ask.sequence.tokens), ask, draft) for ask, draft in zip(asks, drafts, strict=True)
        ]
        return drafts


class Oracle:
    """The same head over the same target, each text read anew."""

    def __init__(self, target: Path, head: Path) -> None:
        self._files = read_eagle(head, Fit(HIDDEN, VOCABULARY, LAYERS))
        self._model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()

    def chain(self, text: list[int], levels: int) -> list[int]:
        features, way = self._features(text[:-1]), list[int]()
        for _ in range(levels):
            way.append(int(self._say(text, features, way).argmax()))
        return way

    def tree(self, text: list[int], ask: Ask) -> Draft:
        features = self._features(text[:-1])

        def likeliest_of(_: Sequence[int], trees: Sequence[Grown], most: int) -> Likeliest:
            logits = torch.stack([self._say(text, features, way) for way in trees[0].ways()])
            return of_logits(logits, [ask.sequence.sampling] * len(logits), most)

        return grow_trees([ask], likeliest_of)[0]

    def _say(self, text: list[int], features: Tensor, way: Sequence[int]) -> Tensor:
        embedding = self._model.get_input_embeddings().weight
        return logits_after(self._files, text, features, embedding, way)

    def _features(self, text: list[int]) -> Tensor:
        states = self._model(torch.tensor([text]), output_hidden_states=True).hidden_states
        return torch.cat([states[tap][0] for tap in TAPS], dim=-1) @ self._files.tensors["fc.weight"].t()


@torch.inference_mode()
def test_drafts_are_those_of_the_head_reading_the_text_anew(
    make_engine: MakeEngine, tiny_dir: Path, tmp_path: Path
) -> None:
    """After rejections, pauses, hits of the prefix cache, copies of shared blocks and preemptions."""
    head = make_eagle_dir(tmp_path, scale=4.0, eagle_aux_hidden_state_layer_ids=TAPS)
    engine = make_engine("eagle", head=head, k=3, kv_bytes=100 << 10, max_batch_tokens=16, prefix_cache=True)
    watch, on = Watch(engine), PolicySettings(kind="static", static_k=3, load=UNCAPPED, tree_nodes=0)
    shared = tokens(9)
    preempted = hits = 0
    for turn in range(2):
        engine.submit(request(f"{turn}a", shared, max_tokens=20, n=2))
        engine.submit(request(f"{turn}b", [*shared, *tokens(4, turn)], max_tokens=30))
        engine.submit(request(f"{turn}c", tokens(14, 5 + turn), max_tokens=25))
        step = 0
        while engine.has_work:
            engine.configure(replace(on, kind="off") if 9 <= step < 14 else on, engine._draft_settings)
            report = engine.step()
            preempted += report.preempted
            hits += sum(output.report.cached_tokens > 0 for output in report.outputs if output.report)
            step += 1
    assert hits, "nothing was found in the prefix cache"
    assert preempted, "nothing was preempted: the pool is too large for this test"
    oracle = Oracle(tiny_dir, head)
    assert len(watch.seen) > 100
    for text, ask, draft in watch.seen[::2]:
        assert draft.tokens == oracle.chain(text, ask.levels), f"{len(text)} tokens"


@torch.inference_mode()
def test_trees_are_those_of_the_head_reading_the_text_anew(
    make_engine: MakeEngine, tiny_dir: Path, tmp_path: Path
) -> None:
    """Nodes hang where the head is surest, read with the keys of their own ancestors."""
    head = make_eagle_dir(tmp_path, scale=4.0, eagle_aux_hidden_state_layer_ids=TAPS)
    engine = with_shape(make_engine("eagle", head=head), levels=3, nodes=9)
    watch = Watch(engine)
    generate(engine, request("a", tokens(9), max_tokens=12), request("b", tokens(5), max_tokens=12))
    oracle = Oracle(tiny_dir, head)
    assert any(draft.parents for _, _, draft in watch.seen)
    for text, ask, draft in watch.seen:
        wanted = oracle.tree(text, ask)
        assert (draft.tokens, draft.parents) == (wanted.tokens, wanted.parents), f"{len(text)} tokens"


@pytest.fixture(scope="module")
def bigram_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target whose layers add nothing."""
    return make_model_dir(tmp_path_factory.mktemp("bigram"), scale=0.0)


@pytest.fixture(scope="module")
def bigram(bigram_dir: Path) -> LoadedModel:
    return load(bigram_dir, torch.float32, torch.device("cpu"), lambda _: None)


def test_a_head_that_knows_what_comes_is_accepted(
    make_engine: MakeEngine, bigram: LoadedModel, bigram_dir: Path, tmp_path: Path
) -> None:
    engine = make_engine("eagle", head=make_knowing_head(tmp_path, bigram_dir), model=bigram, k=4)
    report = generate(engine, request("a", tokens(12)))["a"].report
    assert sum(report.accepted) > 0.8 * sum(report.examined)
    assert report.rounds < 24 / 2


def test_a_pause_costs_no_acceptance(
    make_engine: MakeEngine, bigram: LoadedModel, bigram_dir: Path, tmp_path: Path
) -> None:
    """Of a head that knows a half of the vocabulary: rounds after the pause are accepted as those of one without."""
    head = make_knowing_head(tmp_path, bigram_dir, known=VOCABULARY // 2)
    on = PolicySettings(kind="static", static_k=3, load=UNCAPPED, tree_nodes=0)
    prompt, shown = tokens(12), []
    for pause in (range(0), range(3, 9)):
        engine = make_engine("eagle", head=head, model=bigram)
        engine.submit(request("a", prompt, max_tokens=60, temperature=1.0, seed=3))
        step = 0
        while engine.has_work:
            engine.configure(replace(on, kind="off") if step in pause else on, engine._draft_settings)
            reports = [output.report for output in engine.step().outputs if output.report]
            shown += [sum(report.accepted) / sum(report.examined) for report in reports]
            step += 1
    assert shown[1] == pytest.approx(shown[0], abs=0.1)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_broken_head_changes_no_text_and_is_noticed(
    make_engine: MakeEngine, bigram: LoadedModel, bigram_dir: Path, tmp_path: Path, temperature: float
) -> None:
    """One whose map of tokens is off by one, beside one that is whole."""
    asked = request("a", tokens(12), temperature=temperature, top_k=2, seed=1, max_tokens=32)
    outputs = []
    for shift in (0, 1):
        head = make_knowing_head(tmp_path / str(shift), bigram_dir, shift=shift)
        outputs.append(generate(make_engine("eagle", head=head, model=bigram), asked)["a"])
    plain = generate(make_engine("none", model=bigram), asked)["a"]
    whole, broken = (sum(o.report.accepted) / sum(o.report.examined) for o in outputs)
    if temperature == 0:
        assert [output.tokens for output in outputs] == [plain.tokens] * 2
    assert whole > 0.7
    assert broken < 0.2


def test_a_heads_weights_and_memory_are_counted(make_engine: MakeEngine) -> None:
    """Keys and values of two heads of 16 and a feature of 64 numbers for each position, in float32."""
    memory = make_engine("eagle", kv_bytes=1 << 20).memory
    weights = [weight for key, weight in eagle_tensors("speculators").items() if key not in ("d2t", "t2d")]
    assert memory["draft_weights"] == 4 * sum(weight.numel() for weight in weights)
    positions = memory["kv"] // 1024
    assert memory["draft_kv"] == positions * 4 * (2 * 2 * 16 + 64)
    assert memory["kv"] + memory["draft_kv"] <= 1 << 20
    assert positions == 680


@pytest.mark.parametrize("layout", ["eagle1", "safeailab"])
def test_heads_of_other_layouts_draft_too(
    make_engine: MakeEngine, tiny_dir: Path, tmp_path: Path, layout: str
) -> None:
    """An EAGLE-1 head reads what is behind the target's final norm and says by the target's own linear."""
    engine = make_engine("eagle", head=make_eagle_dir(tmp_path, layout, scale=4.0))
    watch, asked = Watch(engine), request("a", tokens(9))
    output = generate(engine, asked)["a"]
    assert output.report.drafted > 0
    assert output.tokens == generate(make_engine("none"), asked)["a"].tokens
    if layout == "eagle1":
        text, _, draft = watch.seen[5]
        assert draft.tokens[0] == eagle1_token(tmp_path, tiny_dir, text)


def eagle1_token(head: Path, target: Path, text: list[int]) -> int:
    """The first that an EAGLE-1 head drafts behind a text, as transformers' hidden states would have it."""
    files = read_eagle(head, Fit(HIDDEN, VOCABULARY, LAYERS))
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    with torch.inference_mode():
        hidden = model(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states[-1][0]
        embedding = model.get_input_embeddings().weight
        handed_on, _ = dense(files, torch.tensor(text[1:]), hidden, embedding)
        return int(model.get_output_embeddings()(handed_on[-1]).argmax())
