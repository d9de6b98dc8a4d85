"""Drafts that are trees: what their rows see, what becomes of their keys, and that the text is plain decoding's."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import Output
from engine.attention.native import NativePagedAttention
from engine.attention.paged import Extras, PagedAttention
from engine.attention.plan import plan_attention
from engine.batch import Span, pack
from engine.draft.base import NO_DRAFT, Ask, Draft
from engine.draft.layer_skip import LayerSkipProposer, _last
from engine.draft.shape import chain, children, depths, misshapen, path, sights
from engine.kernels.native import NativeOps, build
from engine.kv.memory import KVMemory, LayerShape
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.loader import LoadedModel, load
from engine.sampling.processors import RowParams, probabilities
from engine.sampling.rng import Purpose, uniforms
from engine.verify.draw import draw
from policies.settings import PolicySettings
from tests.engine.conftest import UNCAPPED, MakeEngine, generate, request
from tests.engine.orchard import with_proposer, with_trees
from tests.tiny import VOCABULARY, make_model_dir

CPU = torch.device("cpu")
compiled = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler: apt-get install g++")


def test_a_shape_says_depths_paths_and_sights() -> None:
    parents = [-1, 0, 0, -1, 3]
    assert depths(parents) == [1, 2, 2, 1, 2]
    assert [path(parents, node) for node in (-1, 2, 4)] == [[], [0, 2], [3, 4]]
    assert children(parents) == [[0, 3], [1, 2], [], [], [4], []]
    assert [f"{sight:06b}" for sight in sights(parents)] == [
        "000001",
        "000011",
        "000111",
        "001011",
        "010001",
        "110001",
    ]
    assert sights(chain(3)) == [1, 3, 7, 15]


def test_a_draft_that_does_not_answer_its_ask_is_told_by_a_sentence() -> None:
    assert Draft([1, 2, 3], parents=[-1, -1, 1]).misfit(3) is None
    assert "room was reserved for 2" in Draft([1, 2, 3]).misfit(2)
    assert "with 1 laws" in Draft([1, 2], torch.ones(1, 4)).misfit(2)
    assert "with 1 parents" in Draft([1, 2], parents=[-1]).misfit(2)
    assert "node 1 hangs at 1" in Draft([1, 2], parents=[-1, 1]).misfit(2)
    assert misshapen([-1] * 63) is None
    assert "at most 63" in misshapen([-1] * 64)


def mask_of(span: Span, window: int | None, *others: Span) -> list[str]:
    """The torch path's mask of a span's rows, with what other spans pad it to cut off."""
    batch = pack([span, *others], CPU)
    (group,) = plan_attention(batch, span.table._pool.block_size).groups
    mask = group.mask(window, 1, span.table._pool.block_size, torch.float32)[0, 0]
    return ["".join("o" if seen == 0 else "." for seen in row) for row in mask[: len(span.tokens)]]


def span_of(before: int, parents: list[int] | None, rows: int, pool: BlockPool) -> Span:
    table = BlockTable(pool)
    table.reserve(before + rows)
    return Span(table, before, [0] * rows, rows, parents)


def test_rows_of_a_tree_see_the_text_their_ancestors_and_themselves() -> None:
    parents = [-1, 0, 0, -1]
    span = span_of(3, parents, 5, BlockPool(8, 4))
    assert list(span.positions) == [3, 4, 5, 5, 4]
    assert mask_of(span, None) == ["oooo....", "ooooo...", "oooooo..", "ooooo.o.", "oooo...o"]
    # by position, not by place: the last row is at 4 and sees 2, 3 and 4
    assert mask_of(span, 3) == [".ooo....", "..ooo...", "...ooo..", "...oo.o.", "..oo...o"]


def test_a_tree_in_company_sees_the_same() -> None:
    pool = BlockPool(16, 4)
    alone = span_of(3, [-1, 0, 0, -1], 5, pool)
    wanted = [row + "...." for row in mask_of(alone, 3)]
    assert mask_of(alone, 3, span_of(5, None, 7, pool)) == wanted


@compiled
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_native_attention_over_trees_equals_torch(kernel_cache: Path, data: st.DataObject) -> None:
    """Trees and chains in one batch, windows, odd block sizes, trees that cross blocks and chunks of keys."""
    ops = NativeOps(build(kernel_cache), torch.float32)
    dim, block = data.draw(st.sampled_from([16, 64])), data.draw(st.sampled_from([1, 4, 20, 32]))
    window = data.draw(st.sampled_from([None, 1, 3, 40]))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    pool = BlockPool(600, block)
    rng.shuffle(pool._free)
    memory = KVMemory({0: LayerShape(2, dim, dim)}, pool.total, block, torch.float32, CPU)
    generator = torch.Generator().manual_seed(int(rng.integers(10**6)))
    memory.keys[0].normal_(generator=generator)
    memory.values[0].normal_(generator=generator)
    spans = []
    for _ in range(data.draw(st.integers(1, 4))):
        nodes = int(rng.choice([1, 5, 20, 31, 50, 63]))
        parents = [int(rng.integers(max(-1, node - 9), node)) for node in range(nodes)]
        tree = data.draw(st.booleans())
        spans.append(span_of(int(rng.integers(0, 70)), parents if tree else None, nodes + 1, pool))
    batch = pack(spans, CPU)
    q, k, v = torch.randn(batch.rows, 8, dim, generator=generator).split([4, 2, 2], dim=1)
    extras = Extras(scaling=dim**-0.5, window=window)
    mine = NativePagedAttention(ops, memory, batch).attend(0, q, k, v, extras)
    theirs = PagedAttention(memory, batch).attend(0, q, k, v, extras)
    assert float((mine - theirs).abs().max()) < 4e-6


def test_an_accepted_paths_keys_follow_the_text() -> None:
    """As if at once: slot 6 is the target of one move and the source of another."""
    memory = KVMemory({0: LayerShape(1, 2, 3), 1: LayerShape(2, 2, 2)}, 2, 4, torch.float32, CPU)
    for store in (*memory.keys.values(), *memory.values.values()):
        store.copy_(torch.arange(12.0)[:, None, None].expand_as(store))
    memory.move([(6, 5), (9, 6)])
    for store in (*memory.keys.values(), *memory.values.values()):
        assert store[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 6, 9, 7, 8, 9, 10, 11]
    memory.move([])


RNG = np.random.default_rng(3)
PROMPTS = [[int(t) for t in RNG.integers(3, VOCABULARY, size=n)] for n in (5, 16, 37)]
REQUESTS = [
    *(request(f"greedy{i}", prompt, max_tokens=30) for i, prompt in enumerate(PROMPTS)),
    *(
        request(f"drawn{i}", p, max_tokens=30, temperature=0.9, top_p=0.9, seed=i)
        for i, p in enumerate(PROMPTS)
    ),
]


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt_oss", "gpt2"])
def test_a_text_under_trees_is_that_of_plain_decoding(
    make_engine: MakeEngine, tmp_path: Path, family: str
) -> None:
    """Greedy and seeded, with windows shorter than the text, soft caps, sinks, learned positions, across blocks."""
    check_same_text(make_engine, load(make_model_dir(tmp_path, family), torch.float32, CPU, lambda _: None))


@compiled
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_text_under_trees_is_that_of_plain_decoding_on_native_kernels(
    make_engine: MakeEngine, tmp_path: Path, kernel_cache: Path, family: str
) -> None:
    path = make_model_dir(tmp_path, family)
    check_same_text(make_engine, load(path, torch.float32, CPU, lambda _: None, cache=kernel_cache))


def check_same_text(make_engine: MakeEngine, model: LoadedModel) -> None:
    plain = generate(make_engine("none", model=model), *REQUESTS)
    got, orchard = with_trees(make_engine("none", model=model, k=9), plain, *REQUESTS)
    assert {n: o.tokens for n, o in got.items()} == {n: o.tokens for n, o in plain.items()}
    assert len(orchard.shapes) > 25
    assert sum(o.report.rounds for o in got.values()) < 0.6 * sum(o.report.rounds for o in plain.values())


def test_reports_count_levels_of_a_tree(make_engine: MakeEngine) -> None:
    plain = generate(make_engine("none"), REQUESTS[0])
    report = with_trees(make_engine("none", k=9), plain, REQUESTS[0])[0]["greedy0"].report
    assert report.accepted[0] >= report.accepted[1] > 0
    assert all(a <= e for a, e in zip(report.accepted, report.examined, strict=True))
    assert report.examined[1] <= report.accepted[0]
    assert report.tokens == 1 + report.rounds + sum(report.accepted), "the prompt's own row gives the first"
    assert report.proposers["orchard"] >= report.rounds - 1


def test_an_end_inside_an_accepted_path_ends_the_text(make_engine: MakeEngine) -> None:
    plain = generate(make_engine("none"), REQUESTS[0])["greedy0"].tokens
    stopped = request("greedy0", PROMPTS[0], max_tokens=30, stop_tokens=(plain[17],))
    wanted = plain[: plain.index(plain[17]) + 1]
    got, _ = with_trees(make_engine("none", k=9), {"greedy0": Output(id="", tokens=plain)}, stopped)
    assert got["greedy0"].tokens == wanted
    assert got["greedy0"].finish == "stop"


class Fork(LayerSkipProposer):
    """Layer skip's law of the next token, from which three siblings are drawn without replacement."""

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        if not asks:
            return []
        logits = self._forward([_last(ask.sequence, []) for ask in asks])
        q = probabilities(logits, RowParams.of([ask.sequence.sampling for ask in asks], CPU))
        return [self._fork(ask, law) for ask, law in zip(asks, q, strict=True)]

    def _fork(self, ask: Ask, law: torch.Tensor) -> Draft:
        tokens: list[int] = []
        laws = []
        for sibling in range(min(ask.k, 3, int((law > 0).sum()))):
            coin = uniforms(
                np.array([ask.sequence.sampling.seed], dtype=np.uint64),
                np.array([len(ask.sequence.tokens)]),
                Purpose.DRAFT,
                np.array([sibling]),
            )
            laws.append(law / law.sum())
            tokens.append(int(draw(law[None], torch.from_numpy(coin))))
            law = law.clone()
            law[tokens[-1]] = 0
        return Draft(tokens, torch.stack(laws), parents=[-1] * len(tokens)) if tokens else NO_DRAFT


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize("who", ["chain", "fork"])
def test_texts_of_drawn_drafts_follow_the_targets_law(make_engine: MakeEngine, rule: str, who: str) -> None:
    """Shares of the third token over 600 seeds against those of plain decoding."""
    asked = [request(str(s), [9, 4] * 4, temperature=0.8, top_k=5, seed=s, max_tokens=4) for s in range(600)]
    plain = make_engine("none")
    drafted = make_engine("layer-skip", k=3, verification=rule)
    if who == "fork":
        with_proposer(drafted, Fork(drafted._loaded, drafted._runner, (1, 2)))
    shares = []
    for engine in (plain, drafted):
        outputs = generate(engine, *asked).values()
        shares.append(np.bincount([o.tokens[2] for o in outputs], minlength=VOCABULARY) / len(asked))
    assert np.abs(shares[0] - shares[1]).max() < 5 * np.sqrt(0.5 / 600)


def test_the_rule_changes_while_running(make_engine: MakeEngine) -> None:
    """Seeded texts under a draft that is often wrong: as if the engine had been started with the new rule."""
    asked = [request(str(s), PROMPTS[0], temperature=1.0, seed=s) for s in range(4)]
    texts = {}
    for rule in ("token", "block"):
        outputs = generate(make_engine("layer-skip", k=4, verification=rule), *asked)
        texts[rule] = {name: output.tokens for name, output in outputs.items()}
    assert texts["token"] != texts["block"]
    engine = make_engine("layer-skip", k=4, verification="token")
    policy = PolicySettings(kind="static", static_k=4, k_max=16, load=UNCAPPED, tree_nodes=0)
    engine.configure(policy, engine._draft_settings, "block")
    assert {name: output.tokens for name, output in generate(engine, *asked).items()} == texts["block"]
