"""Medusa heads: their files, and the drafts that they make."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from engine.api import DraftSettings, Request
from engine.draft.medusa import load_part
from engine.heads.medusa import Fit, MedusaHeads, read_medusa
from engine.heads.tensors import HeadError
from policies.settings import PolicySettings
from tests.engine.conftest import UNCAPPED, MakeEngine, generate, request
from tests.engine.orchard import with_shape
from tests.tiny import VOCABULARY
from tests.tiny_heads import HIDDEN, write_medusa

TINY = Fit(HIDDEN, VOCABULARY)
CPU = torch.device("cpu")
FIT = Fit(hidden=8, vocabulary=20)


class ResBlock(nn.Module):
    """As the paper has it."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.silu(self.linear(x))


def make_heads(heads: int = 3, blocks: int = 1, fit: Fit = FIT) -> nn.ModuleList:
    """The module whose weights the first version's files hold."""
    torch.manual_seed(0)
    return nn.ModuleList(
        nn.Sequential(
            *(ResBlock(fit.hidden) for _ in range(blocks)), nn.Linear(fit.hidden, fit.vocabulary, bias=False)
        )
        for _ in range(heads)
    )


def no_head(_: Tensor) -> Tensor:
    raise AssertionError("these heads have linears of their own")


@torch.inference_mode()
@pytest.mark.parametrize("pickled", [True, False])
@pytest.mark.parametrize("prefix", ["", "medusa_heads."])
@pytest.mark.parametrize("blocks", [1, 2])
def test_heads_say_what_the_papers_modules_say(
    tmp_path: Path, pickled: bool, prefix: str, blocks: int
) -> None:
    modules = make_heads(blocks=blocks)
    tensors = {prefix + key: value for key, value in modules.state_dict().items()}
    files = read_medusa(write_medusa(tmp_path, tensors, pickled=pickled, medusa_num_layers=blocks), FIT)
    assert (files.heads, files.blocks, files.shared) == (3, blocks, False)
    heads = MedusaHeads(files, torch.float32, CPU, no_head)
    hidden = torch.randn(5, FIT.hidden)
    torch.testing.assert_close(heads(hidden, 2), torch.stack([module(hidden) for module in modules[:2]]))
    assert heads.weight_bytes == 4 * sum(parameter.numel() for parameter in modules.parameters())


@torch.inference_mode()
def test_heads_without_linears_use_the_targets(tmp_path: Path) -> None:
    modules, own = make_heads(), nn.Linear(FIT.hidden, FIT.vocabulary)
    blocks = {key: value for key, value in modules.state_dict().items() if "linear" in key}
    heads = MedusaHeads(read_medusa(write_medusa(tmp_path, blocks), FIT), torch.float32, CPU, own)
    hidden = torch.randn(5, FIT.hidden)
    torch.testing.assert_close(heads(hidden, 1)[0], own(modules[0][0](hidden)))


def test_a_config_that_says_too_few_heads_is_overruled_by_the_weights(tmp_path: Path) -> None:
    """The first published heads are five, and their config says two."""
    tensors = make_heads(5).state_dict()
    assert read_medusa(write_medusa(tmp_path, tensors, medusa_num_heads=2), FIT).heads == 5
    with pytest.raises(HeadError, match="medusa_num_heads = 6, but there are weights of 5"):
        read_medusa(write_medusa(tmp_path, tensors, medusa_num_heads=6), FIT)


def test_heads_that_do_not_fit_are_refused_by_a_sentence(tmp_path: Path) -> None:
    tensors = make_heads().state_dict()
    folder = write_medusa(tmp_path, tensors)
    with pytest.raises(HeadError, match="made for a target of hidden size 8, this one has 16"):
        read_medusa(folder, Fit(16, 20))
    with pytest.raises(HeadError, match="made for a vocabulary of 20 tokens, the target's has 21"):
        read_medusa(folder, Fit(8, 21))
    with pytest.raises(HeadError, match=r"has 2 weights that nothing reads: 1\.2\.weight, fc\.weight"):
        read_medusa(
            write_medusa(tmp_path, {**tensors, "1.2.weight": torch.ones(1), "fc.weight": torch.ones(1)}), FIT
        )
    with pytest.raises(HeadError, match=r"lacks 1 of its weights: 1\.1\.weight"):
        read_medusa(write_medusa(tmp_path, {k: v for k, v in tensors.items() if k != "1.1.weight"}), FIT)
    with pytest.raises(HeadError, match=r"no Medusa heads: there is no 0\.0\.linear\.weight, but fc\.weight"):
        read_medusa(write_medusa(tmp_path, {"fc.weight": torch.ones(1)}), FIT)


def make_knowing_heads(path: Path, target: Path, text: list[int], *, heads: int = 4, shift: int = 0) -> Path:
    """Heads that know one text of up to 64 tokens by heart: their linears solve for it. shift: added to its tokens."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    hidden = model(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0]
    tensors = {}
    for head in range(heads):
        known = len(text) - head - 2  # positions of which it knows what it is asked
        wanted = torch.zeros(known, VOCABULARY)
        wanted[range(known), [(token + shift) % VOCABULARY for token in text[head + 2 :]]] = 20.0
        tensors[f"{head}.0.linear.weight"] = torch.zeros(HIDDEN, HIDDEN)
        tensors[f"{head}.0.linear.bias"] = torch.zeros(HIDDEN)
        tensors[f"{head}.1.weight"] = torch.linalg.lstsq(hidden[:known], wanted).solution.t().contiguous()
    return write_medusa(path, tensors, medusa_num_heads=heads)


PROMPT = [int(t) for t in np.random.default_rng(8).integers(3, VOCABULARY, size=12)]


def asked(name: str = "a", **changes: object) -> Request:
    """Greedy, and no token comes twice: a text that loops would forgive heads that read the wrong place."""
    return request(name, PROMPT, **{"max_tokens": 40, "repetition_penalty": 10.0, **changes})


@pytest.fixture(scope="module")
@torch.inference_mode()
def plain_text(tiny_dir: Path) -> list[int]:
    """What transformers' own forward says."""
    model = AutoModelForCausalLM.from_pretrained(tiny_dir, dtype=torch.float32).eval()
    text: list[int] = []
    for _ in range(40):
        row = model(torch.tensor([PROMPT + text])).logits[0, -1]
        seen = [*PROMPT, *text]
        row[seen] = torch.where(row[seen] > 0, row[seen] / 10, row[seen] * 10)
        text.append(int(row.argmax()))
    return text


@pytest.fixture(scope="module")
@torch.inference_mode()
def knowing(tiny_dir: Path, plain_text: list[int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_knowing_heads(tmp_path_factory.mktemp("knowing"), tiny_dir, PROMPT + plain_text)


@pytest.mark.parametrize("nodes", [4, 12])
def test_heads_that_know_a_text_are_always_accepted(
    make_engine: MakeEngine, knowing: Path, plain_text: list[int], nodes: int
) -> None:
    """As a chain and as a tree. They read the hidden state of the right position, behind the final norm."""
    engine = with_shape(make_engine("medusa", head=knowing), levels=4, nodes=nodes)
    output = generate(engine, asked())["a"]
    assert output.tokens == plain_text
    assert output.report.accepted == output.report.examined
    assert output.report.rounds <= 40 / 5 + 1


def test_heads_find_their_place_after_pauses_preemptions_and_prefix_hits(
    make_engine: MakeEngine, knowing: Path, plain_text: list[int]
) -> None:
    """Their feature lies beside the target's keys, so it is where these are."""
    engine = make_engine("medusa", head=knowing, kv_bytes=80 << 10, prefix_cache=True)
    on = PolicySettings(kind="static", static_k=4, load=UNCAPPED)
    preempted, outputs = 0, []
    for name in ("a", "b"):
        engine.submit(request(f"{name} beside", PROMPT[::-1], max_tokens=40))
        engine.submit(asked(name))  # the younger one is preempted
        step = 0
        while engine.has_work:
            engine.configure(replace(on, kind="off") if 2 <= step < 6 else on, engine._draft_settings)
            report = engine.step()
            preempted += report.preempted
            outputs += [output for output in report.outputs if output.report and output.id == name]
            step += 1
    assert preempted, "nothing was preempted: the pool is too large for this test"
    assert outputs[1].report.cached_tokens > 0
    assert all(output.report.accepted == output.report.examined for output in outputs)
    assert all(sum(output.report.accepted) > 15 for output in outputs)


@pytest.fixture
@torch.inference_mode()
def broken(tiny_dir: Path, plain_text: list[int], tmp_path: Path) -> list[Path]:
    """Heads that know the text and say each token's neighbour, and heads that say no numbers."""
    nan = {key: torch.full_like(value, torch.nan) for key, value in make_heads(fit=TINY).state_dict().items()}
    return [
        make_knowing_heads(tmp_path / "shifted", tiny_dir, PROMPT + plain_text, shift=1),
        write_medusa(tmp_path / "nan", nan),
    ]


@pytest.mark.parametrize(("temperature", "nodes"), [(0.0, 3), (0.0, 9), (0.7, 3), (0.7, 9)])
def test_broken_heads_change_no_text_and_are_noticed(
    make_engine: MakeEngine, broken: list[Path], temperature: float, nodes: int
) -> None:
    mine = asked(temperature=temperature, top_k=3, seed=2)
    plain = generate(make_engine("none"), mine)["a"].tokens
    for head in broken:
        output = generate(with_shape(make_engine("medusa", head=head), levels=3, nodes=nodes), mine)["a"]
        assert output.finish == "length"
        assert sum(output.report.accepted) < 0.2 * sum(output.report.examined) + 1
        if (
            temperature == 0 or nodes > 3
        ):  # else drawn from laws, and then a seed's text is another of the same law
            assert output.tokens == plain


def test_a_prompt_of_one_token_is_decoded_until_there_is_something_to_read(
    make_engine: MakeEngine, knowing: Path
) -> None:
    mine = request("a", [7], max_tokens=10)
    output = generate(make_engine("medusa", head=knowing), mine)["a"]
    assert output.tokens == generate(make_engine("none"), mine)["a"].tokens
    assert output.report.k_histogram[0] >= 1


def test_a_draft_by_heads_names_them(make_engine: MakeEngine) -> None:
    with pytest.raises(HeadError, match="name their directory"):
        load_part(DraftSettings(kinds=("medusa",)), make_engine("none")._loaded, lambda _: None)


def test_heads_and_what_they_read_are_counted(make_engine: MakeEngine, knowing: Path) -> None:
    engine, plain = make_engine("medusa", head=knowing), make_engine("none")
    assert engine.memory["draft_weights"] == 4 * 4 * (HIDDEN * HIDDEN + HIDDEN + VOCABULARY * HIDDEN)
    assert engine.memory["draft_kv"] == engine.pool.total * engine.pool.block_size * HIDDEN * 4
    assert engine.memory["kv"] + engine.memory["draft_kv"] <= plain.memory["kv"]
