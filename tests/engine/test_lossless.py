"""Greedy text is the same with and without speculation, alone and in company; sampled text follows its seed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.api import DraftSettings
from engine.model.loader import LoadedModel, load
from policies.settings import PolicySettings
from tests.engine.conftest import UNCAPPED, MakeEngine, generate, request
from tests.engine.orchard import with_shape
from tests.tiny import VOCABULARY

KINDS = ["ngram", "suffix", "layer-skip", "model", "eagle", "medusa"]
RNG = np.random.default_rng(0)
COPY = [int(t) for t in np.tile(RNG.integers(3, VOCABULARY, size=6), 4)]
PROMPTS = {
    "copy": COPY,
    "short": [7],
    "random": [int(t) for t in RNG.integers(3, VOCABULARY, size=37)],
    "block": [int(t) for t in RNG.integers(3, VOCABULARY, size=16)],
}


@pytest.fixture(scope="module")
def plain(tiny_dir: Path) -> dict[str, list[int]]:
    """What transformers' own generate says, one prompt at a time."""
    return {name: transformers_greedy(tiny_dir, prompt) for name, prompt in PROMPTS.items()}


def transformers_greedy(path: Path, prompt: list[int], tokens: int = 24) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ids = torch.tensor([prompt])
    model.generation_config.eos_token_id = None
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=1
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("kind", ["none", *KINDS])
@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("name", PROMPTS)
def test_greedy_text_alone_equals_transformers(
    make_engine: MakeEngine, plain: dict[str, list[int]], kind: str, k: int, name: str
) -> None:
    output = generate(make_engine(kind, k=k), request(name, PROMPTS[name]))[name]
    assert output.tokens == plain[name]
    assert output.finish == "length"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [16, 512])
def test_greedy_text_in_a_mixed_batch_equals_transformers(
    make_engine: MakeEngine, plain: dict[str, list[int]], kind: str, rows: int
) -> None:
    """Requests with and without speculation, with their own k, greedy and sampled, with prompts in chunks of a step."""
    engine = make_engine(kind, max_batch_tokens=rows)
    outputs = generate(
        engine,
        request("copy", PROMPTS["copy"]),
        request("noise", PROMPTS["random"], temperature=1.0, seed=5),
        request("short", PROMPTS["short"], speculate=False),
        request("random", PROMPTS["random"], k=7),
        request("noise2", PROMPTS["copy"], temperature=0.7, top_k=5, seed=6),
        request("block", PROMPTS["block"], k=0),
    )
    for name, tokens in plain.items():
        assert outputs[name].tokens == tokens
    assert outputs["short"].report.k_histogram.keys() == {0}


@pytest.mark.parametrize("kind", ["layer-skip", "medusa"])
def test_a_text_under_grown_trees_is_that_of_plain_decoding(make_engine: MakeEngine, kind: str) -> None:
    """Greedy and seeded, alone and together: trees are certain drafts, so even a seed's text stays as it is."""
    asked = [
        *(request(name, prompt) for name, prompt in PROMPTS.items()),
        *(request(f"drawn {name}", p, temperature=0.8, top_p=0.9, seed=3) for name, p in PROMPTS.items()),
    ]
    plain = {name: output.tokens for name, output in generate(make_engine("none"), *asked).items()}
    together = generate(with_shape(make_engine(kind, max_batch_tokens=32), levels=3, nodes=9), *asked)
    assert {name: output.tokens for name, output in together.items()} == plain
    for each in asked:
        alone = generate(with_shape(make_engine(kind), levels=3, nodes=9), each)[each.id]
        assert alone.tokens == plain[each.id]
    assert all(output.report.drafted > 20 for output in together.values())


def test_drafts_are_accepted_on_a_copy_task(make_engine: MakeEngine) -> None:
    """Equality would be idle if nothing was ever drafted: layer skip that skips nothing is the target itself."""
    report = generate(make_engine("layer-skip", k=4, skip=()), request("a", PROMPTS["random"]))["a"].report
    assert report.examined == report.accepted
    assert report.rounds <= 24 / 5 + 1
    assert report.proposers == {"layer-skip": report.rounds}


def test_a_draft_that_skips_everything_is_rejected_and_changes_nothing(
    make_engine: MakeEngine, plain: dict[str, list[int]]
) -> None:
    output = generate(make_engine("layer-skip", k=4, skip=(0, 1, 2, 3)), request("a", PROMPTS["random"]))["a"]
    assert output.tokens == plain["random"]
    assert output.report.accepted[0] < output.report.examined[0]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_in_bf16_differs_at_near_ties_only(
    make_engine: MakeEngine, tiny_dir: Path, kind: str
) -> None:
    """A matmul of 1 row and one of k+1 rows round differently: where texts part, two tokens were as good as equal."""
    bf16 = load(tiny_dir, torch.bfloat16, torch.device("cpu"), lambda _: None)
    requests = [request(name, prompt) for name, prompt in PROMPTS.items()]
    plain = generate(make_engine("none", model=bf16), *requests)
    drafted = generate(make_engine(kind, model=bf16), *requests)
    reference = AutoModelForCausalLM.from_pretrained(tiny_dir, dtype=torch.float32).eval()
    for name, prompt in PROMPTS.items():
        for at, (a, b) in enumerate(zip(plain[name].tokens, drafted[name].tokens, strict=True)):
            if a != b:
                with torch.inference_mode():
                    row = reference(torch.tensor([prompt + plain[name].tokens[:at]])).logits[0, -1]
                assert abs(row[a] - row[b]) <= 0.03 * (row.max() - row.min()), (
                    f"{name} parts at {at} without a tie"
                )
                break


@pytest.mark.parametrize("kind", ["none", *KINDS])
def test_seeded_sampling_does_not_depend_on_who_shares_the_batch(make_engine: MakeEngine, kind: str) -> None:
    mine = request("mine", PROMPTS["random"], temperature=0.9, top_p=0.95, seed=42)
    alone = generate(make_engine(kind), mine)["mine"]
    company = [request(f"r{i}", PROMPTS["copy"], temperature=1.0, seed=i, k=i) for i in range(4)]
    assert generate(make_engine(kind, max_batch_tokens=32), *company, mine)["mine"].tokens == alone.tokens


@pytest.mark.parametrize("kind", ["ngram", "suffix"])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_a_seeds_text_does_not_depend_on_what_was_looked_up(
    make_engine: MakeEngine, kind: str, k: int
) -> None:
    """Sampled text of lookups equals plain decoding's, token by token, so it repeats whatever the policy does."""
    asked = [request(str(s), COPY, temperature=0.8, top_k=4, seed=s) for s in range(6)]
    plain = generate(make_engine("none"), *asked)
    drafted = generate(make_engine(kind, k=k), *asked)
    assert {n: o.tokens for n, o in drafted.items()} == {n: o.tokens for n, o in plain.items()}
    assert sum(sum(o.report.accepted) for o in drafted.values()) > 0


def test_seeds_make_texts_differ(make_engine: MakeEngine) -> None:
    texts = {
        tuple(
            generate(make_engine(), request("a", PROMPTS["random"], temperature=1.5, seed=seed))["a"].tokens
        )
        for seed in range(4)
    }
    assert len(texts) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_sampled_tokens_follow_the_targets_law(
    make_engine: MakeEngine, tiny: LoadedModel, kind: str
) -> None:
    """Shares of the third token over 600 seeds: layer skip's rejection sampling shares no draws with plain decoding."""
    shares = []
    for chosen in ("none", kind):
        engine = make_engine(chosen, k=2)
        outputs = generate(
            engine,
            *(request(str(s), COPY, temperature=0.8, top_k=3, seed=s, max_tokens=4) for s in range(600)),
        )
        counts = np.zeros(VOCABULARY)
        for output in outputs.values():
            counts[output.tokens[2]] += 1
        shares.append(counts / len(outputs))
    assert np.abs(shares[0] - shares[1]).max() < 5 * np.sqrt(0.5 / 600)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pause_at_k_0_leaves_nothing_stale(make_engine: MakeEngine, kind: str) -> None:
    """A request whose drafting was off for ten steps is then accepted as one that drafted all along."""
    steady = generate(make_engine(kind), request("a", COPY, max_tokens=60))["a"].report
    engine = make_engine(kind)
    draft = DraftSettings(kinds=(kind,), ngram_min=1, ngram_max=3)
    on = PolicySettings(kind="static", static_k=3, load=UNCAPPED, tree_nodes=0)
    engine.submit(request("a", COPY, max_tokens=60))
    reports = []
    for step in range(60):
        engine.configure(replace(on, kind="off") if 2 <= step < 12 else on, draft)
        reports += [output.report for output in engine.step().outputs if output.report]
        if not engine.has_work:
            break
    (paused,) = reports
    assert paused.k_histogram[0] >= 10
    assert sum(paused.accepted) / sum(paused.examined) >= sum(steady.accepted) / sum(steady.examined) - 0.1


def test_a_policy_without_a_draft_cost_takes_the_proposers_own(make_engine: MakeEngine) -> None:
    """A layer-skip draft that keeps every layer costs a plain step a token: never worth it, whatever its acceptance."""
    engine = make_engine("layer-skip", skip=())
    draft = DraftSettings(kinds=("layer-skip",), ngram_min=1, ngram_max=3, skip_layers=())
    engine.configure(PolicySettings(kind="ewma", load=UNCAPPED, probe_every=1000), draft)
    assert generate(engine, request("a", COPY))["a"].report.k_histogram == {0: 23}
    engine.configure(PolicySettings(kind="ewma", load=UNCAPPED, draft_cost=0.0), draft)
    assert generate(engine, request("a", COPY))["a"].report.drafted > 0
