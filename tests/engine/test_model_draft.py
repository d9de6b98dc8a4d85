"""A draft model never changes the text, goes on where it was, and is refused by a sentence where it does not fit."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file, save_file

from engine.api import DraftSettings, Launch
from engine.budget import budget
from engine.core import Engine
from engine.draft.base import Ask
from engine.draft.errors import DraftSettingsError
from engine.draft.model import share
from engine.draft.model_part import ModelPart, load_model
from engine.draft.reading import Reading
from engine.draft.registry import Parts
from engine.kv.memory import KVMemory
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.loader import LoadedModel, load
from engine.model.runner import Runner
from engine.sequence import Sequence
from policies.settings import PolicySettings
from tests.engine.conftest import UNCAPPED, MakeEngine, finish, generate, request
from tests.engine.test_lossless import COPY, PROMPTS
from tests.other_tokenizer import give_tokenizer, make_other_tokenizer, make_word_tokenizer
from tests.tiny import VOCABULARY, make_model_dir
from tests.tiny_t5 import make_t5_dir

OF_TOKENS = {"model.embed_tokens.weight", "lm_head.weight"}
CPU = torch.device("cpu")


def silent(_: str) -> None:
    """Says nothing."""


def plain(make_engine: MakeEngine, *asked: object) -> dict[str, list[int]]:
    return {name: output.tokens for name, output in generate(make_engine("none"), *asked).items()}


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch, tiny: LoadedModel) -> list[int]:
    """Of each of the draft's passes."""
    seen: list[int] = []
    run = Runner.run

    def counted(self: Runner, forward: object, batch: object, *more: object) -> torch.Tensor:
        if forward is not tiny.forward:
            seen.append(batch.rows)
        return run(self, forward, batch, *more)

    monkeypatch.setattr(Runner, "run", counted)
    return seen


def test_a_draft_like_the_target_is_always_right(make_engine: MakeEngine, tiny: LoadedModel) -> None:
    asked = [request(name, prompt) for name, prompt in PROMPTS.items()]
    outputs = generate(make_engine("model", k=4, drafts=tiny), *asked)
    assert {name: output.tokens for name, output in outputs.items()} == plain(make_engine, *asked)
    for output in outputs.values():
        assert output.report.examined == output.report.accepted
        assert output.report.rounds <= 24 / 5 + 2  # one of them may catch up with the prompt


def test_a_sampled_draft_like_the_target_is_always_right(make_engine: MakeEngine, tiny: LoadedModel) -> None:
    """p = q: nothing can be rejected, whatever is cut from the rows."""
    asked = [request(str(s), COPY, temperature=1.2, top_k=9, min_p=0.01, seed=s) for s in range(4)]
    for output in generate(make_engine("model", k=4, drafts=tiny), *asked).values():
        assert output.report.examined == output.report.accepted


def shifted(source: Path, path: Path) -> Path:
    """The model with each token's embedding and output row given to the next token."""
    shutil.copytree(source, path)
    weights = load_file(path / "model.safetensors")
    for name in OF_TOKENS & weights.keys():
        weights[name] = weights[name].roll(1, dims=0)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_broken_drafts_change_nothing_and_show_in_acceptance(
    make_engine: MakeEngine, tiny_dir: Path, near_draft: LoadedModel, tmp_path: Path
) -> None:
    """Other weights, and the right ones under shifted ids."""
    asked = [request(name, PROMPTS[name], max_tokens=16) for name in ("random", "block", "short")]
    expected = plain(make_engine, *asked)
    directories = {
        "random": make_model_dir(tmp_path / "random", seed=9),
        "shifted": shifted(tiny_dir, tmp_path / "shifted"),
    }
    accepted = {}
    drafts = {name: load(path, torch.float32, CPU, silent) for name, path in directories.items()}
    for name, draft in {**drafts, "near": near_draft}.items():
        outputs = generate(make_engine("model", drafts=draft), *asked)
        assert {asked: output.tokens for asked, output in outputs.items()} == expected
        reports = [output.report for output in outputs.values()]
        accepted[name] = sum(r.accepted[0] for r in reports) / sum(r.examined[0] for r in reports)
    assert accepted["near"] > 0.3
    assert max(accepted["random"], accepted["shifted"]) < 0.2


def test_what_was_accepted_is_not_computed_again(
    make_engine: MakeEngine, tiny: LoadedModel, rows: list[int]
) -> None:
    """The prompt once; then, each round, the last guess and the token after it, and a row for each further guess."""
    make = make_engine("model", k=3, drafts=replace(tiny, forward=tiny.forward.without_layers(())))
    generate(make, request("a", PROMPTS["block"], max_tokens=21))
    assert rows == [17, 1, 1, *[2, 1, 1] * 4]


def test_a_rejected_guess_is_replaced_by_one_row(make_engine: MakeEngine, rows: list[int]) -> None:
    """The first pass of a round has a row for the corrected token, and one more only if all was accepted before."""
    report = generate(make_engine("model", k=3), request("a", PROMPTS["block"]))["a"].report
    assert report.accepted[0] < report.examined[0]
    assert sum(rows) <= len(PROMPTS["block"]) + report.drafted + report.rounds
    assert set(rows[1:]) == {1, 2}


def test_a_long_prompt_is_caught_up_with_in_parts(
    make_engine: MakeEngine, tiny: LoadedModel, rows: list[int]
) -> None:
    """A text goes on without drafts until all of it was read; one beside it is drafted for in each step."""
    draft = replace(tiny, forward=tiny.forward.without_layers(()))
    engine = make_engine("model", k=2, drafts=draft, max_batch_tokens=512)
    prompt = [int(t) for t in np.random.default_rng(1).integers(3, VOCABULARY, size=150)]
    engine.submit(request("near", COPY, max_tokens=60))
    engine.step()
    engine.submit(request("far", prompt, max_tokens=30))
    outputs = finish(engine)
    assert max(rows) <= 32 + 3
    assert outputs["far"].report.k_histogram[2] > outputs["far"].report.proposers["model"] > 5
    assert outputs["near"].report.examined == outputs["near"].report.accepted
    assert outputs["far"].report.examined == outputs["far"].report.accepted


def test_rows_are_shared_in_order_and_never_denied_to_those_that_keep_up() -> None:
    plain, encoded = BlockTable(BlockPool(1, 4)), BlockTable(BlockPool(1, 4), source=90)
    lacks = {
        0: (plain, 500),
        1: (plain, 2),
        2: (encoded, 91),
        3: (plain, 90),
        4: (plain, 18),
        5: (encoded, 91),
    }
    readings = {text: Reading(table, 0, [7] * lack) for text, (table, lack) in lacks.items()}
    assert share(readings, 510) == {0: 500, 1: 2, 2: 91, 3: 0, 4: 18, 5: 0}
    assert share(readings, 560) == {0: 500, 1: 2, 2: 91, 3: 0, 4: 18, 5: 0}
    assert share(readings, 600) == {0: 500, 1: 2, 2: 91, 3: 9, 4: 18, 5: 0}


def test_a_draft_model_resumes_in_blocks_of_others(
    make_engine: MakeEngine, tiny: LoadedModel, rows: list[int]
) -> None:
    """From the prefix cache, and with the texts of one request: only what is new is computed."""
    draft = replace(tiny, forward=tiny.forward.without_layers(()))
    engine = make_engine("model", k=2, drafts=draft)
    generate(engine, request("a", PROMPTS["random"], max_tokens=8))
    rows.clear()
    outputs = generate(engine, request("b", PROMPTS["random"], max_tokens=8))
    assert outputs["b"].report.cached_tokens == 36
    assert rows[0] <= 2  # the prompt's last token and the first of the text, of which it may find one more
    rows.clear()
    outputs = generate(engine, request("c", PROMPTS["random"], max_tokens=8, n=3, temperature=1.0))
    assert rows[0] <= 3 * 2 + 3 * 4  # each text's own copy of the block in which they part
    assert all(output.report.examined == output.report.accepted for output in outputs.values())


def test_preemption_leaves_nothing_stale(make_engine: MakeEngine, tiny: LoadedModel) -> None:
    """A pool for about one and a half of three texts: a draft like the target is still always right."""
    position = 2 * tiny.bytes_per_position
    engine = make_engine("model", k=3, drafts=tiny, kv_bytes=100 * position, prefix_cache=False)
    asked = [request(name, PROMPTS[name], max_tokens=40) for name in ("copy", "random", "block")]
    for one in asked:
        engine.submit(one)
    preempted, outputs = 0, {}
    while engine.has_work:
        report = engine.step()
        preempted += report.preempted
        outputs.update({output.id: output for output in report.outputs if output.finish})
    assert preempted > 0
    for output in outputs.values():
        assert output.report.examined == output.report.accepted


def test_a_shorter_context_ends_the_drafts_and_not_the_text(
    make_engine: MakeEngine, tiny_dir: Path, tmp_path: Path
) -> None:
    short = shutil.copytree(tiny_dir, tmp_path / "short")
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 44}))
    said: list[str] = []
    target = load(tiny_dir, torch.float32, CPU, silent)
    part = load_model(DraftSettings(kinds=("model",), model_path=str(short)), target, said.append)
    assert any("its context is 44 tokens and the target's is 512" in line for line in said)
    asked = request("a", PROMPTS["random"], max_tokens=12)
    output = generate(make_engine("model", k=4, drafts=part.draft), asked)["a"]
    assert output.tokens == plain(make_engine, asked)["a"]
    # the first round catches up with the prompt, the second one drafts after 39 tokens, and then there are 44
    assert sum(output.report.accepted) == output.report.drafted == 4


@pytest.mark.parametrize("rows_", [300, 352])
def test_rows_beyond_the_tokenizer_may_be_more_or_fewer(
    make_engine: MakeEngine, tmp_path: Path, rows_: int
) -> None:
    """A target draws tokens that its draft has no row for, and a draft has rows that the target lacks."""
    draft = load(make_model_dir(tmp_path, vocab_size=rows_), torch.float32, CPU, silent)
    asked = [
        request("a", [*COPY, VOCABULARY - 1], max_tokens=9),
        request("b", COPY, temperature=2.0, seed=1, max_tokens=9),
        request("c", COPY, allowed_tokens=(VOCABULARY - 2,), temperature=1.0, max_tokens=9),
    ]
    outputs = generate(make_engine("model", drafts=draft), *asked)
    assert outputs["a"].tokens == plain(make_engine, *asked)["a"]
    assert all(output.finish == "length" for output in outputs.values())
    assert outputs["c"].tokens == [VOCABULARY - 2] * 9


def refused(settings: DraftSettings, target: LoadedModel) -> str:
    with pytest.raises(DraftSettingsError) as caught:
        load_model(settings, target, silent)
    return str(caught.value)


def test_each_refusal_is_a_sentence(tiny: LoadedModel, tiny_dir: Path, tmp_path: Path) -> None:
    def settings(path: Path | str, **more: str) -> DraftSettings:
        return DraftSettings(kinds=("model",), model_path=str(path), **more)

    def copy(name: str, **config: object) -> Path:
        path = shutil.copytree(tiny_dir, tmp_path / name)
        before = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(before | config))
        return path

    assert "need model.draft.model: a smaller model" in refused(settings(""), tiny)
    assert "tokenizer.json: missing" in refused(settings(tmp_path / "none"), tiny)
    other = give_tokenizer(copy("other"), make_other_tokenizer())
    assert "token 0 is '<|im_start|>' in the target's tokenizer and '<|begin|>'" in refused(
        settings(other), tiny
    )
    words = give_tokenizer(copy("words"), make_word_tokenizer(200))
    assert "shares 0 tokens with the target" in refused(settings(words, vocabulary="mapped"), tiny)
    assert "mamba" in refused(settings(copy("mamba", model_type="mamba")), tiny)
    damaged = copy("damaged")
    (damaged / "model.safetensors").write_bytes(b"no tensors")
    assert f"{damaged} could not be loaded" in refused(settings(damaged), tiny)


def test_memory_of_the_draft_is_in_the_budget(tiny: LoadedModel, near_draft: LoadedModel) -> None:
    """Both caches come out of engine.kv_mib, with as many positions each."""
    parts = Parts({"model": ModelPart(tiny, near_draft)})
    launch = Launch(model_path="", kv_bytes=1 << 20, block_size=4)
    needs = budget(launch, tiny, parts)
    assert needs.draft_weights == near_draft.weight_bytes
    assert needs.draft_kv == needs.kv > 0.49 * (1 << 20)
    assert needs.kv + needs.draft_kv <= 1 << 20
    engine = Engine(launch, tiny, None, parts)
    assert engine.memory == needs.as_dict()


def test_an_encoder_decoder_drafts_for_one_of_its_family(make_engine: MakeEngine, tmp_path: Path) -> None:
    """Its encoder reads the prompt whole; a text in the blocks of another that began alike reads its own."""
    path = make_t5_dir(tmp_path, "t5-v1.1")
    target = load(path, torch.float32, CPU, silent)
    part = load_model(DraftSettings(kinds=("model",), model_path=str(path)), target, silent)
    engine = make_engine("model", model=target, part=part, k=3)
    long = PROMPTS["random"] * 2
    asked = [request("a", long), request("b", PROMPTS["block"]), request("c", [*long[:-1], 9])]
    outputs = {}
    for one in asked:
        outputs |= generate(engine, one)
    outputs |= generate(engine, *(structs.replace(one, id=one.id * 2) for one in asked))
    expected = {
        name: output.tokens for name, output in generate(make_engine("none", model=target), *asked).items()
    }
    for name, tokens in expected.items():
        assert outputs[name].tokens == outputs[name * 2].tokens == tokens
    for output in outputs.values():
        assert output.report.examined == output.report.accepted
        assert output.report.drafted > 10


def test_after_a_pause_a_draft_like_the_target_is_as_right_as_before(
    make_engine: MakeEngine, tiny: LoadedModel, rows: list[int]
) -> None:
    """What was written without it is read when it is asked again, once and in one pass."""
    engine = make_engine("model", k=3, drafts=replace(tiny, forward=tiny.forward.without_layers(())))
    draft = DraftSettings(kinds=("model",))
    on = PolicySettings(kind="static", static_k=3, load=UNCAPPED, tree_nodes=0)
    engine.submit(request("a", PROMPTS["block"], max_tokens=39))
    reports = []
    for step in range(40):
        engine.configure(replace(on, kind="off") if 4 <= step < 14 else on, draft)
        reports += [output.report for output in engine.step().outputs if output.report]
        if reports:
            break
    (report,) = reports
    assert report.k_histogram[0] == 10
    assert report.examined == report.accepted
    assert rows == [17, 1, 1, *[2, 1, 1] * 2, 12, 1, 1, *[2, 1, 1] * 3]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_likeliest_branches_of_a_tree_are_what_the_draft_would_say(
    tiny: LoadedModel, make_engine: MakeEngine, temperature: float
) -> None:
    """At every fork, and again when the tree is grown anew over the keys of the first one, beside a chain."""
    prompt = PROMPTS["block"]
    memory, pool = KVMemory(tiny.shapes, 40, 4, torch.float32, CPU), BlockPool(40, 4)
    proposer = ModelPart(tiny, tiny).proposer(memory, Runner(memory))
    texts = [Sequence(request(name, prompt, temperature=temperature), pool, None) for name in ("a", "b")]
    for text in texts:
        text.table.reserve(len(prompt) + 12)
    trees = [proposer.propose([Ask(texts[0], 12, 4), Ask(texts[1], 4, 4)])[0] for _ in range(2)]
    assert trees[0] == trees[1]
    assert len(trees[0].tokens) == 12
    ways = trees[0].ways()
    first = {tuple(way[:-1]): way[-1] for way in reversed(ways[1:])}  # elder siblings come first
    asked = [request(str(way), [*prompt, *way], max_tokens=1) for way in first]
    assert plain(make_engine, *asked) == {str(way): [token] for way, token in first.items()}
