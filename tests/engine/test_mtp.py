"""Multi-token-prediction modules draft what transformers' own classes say, reading the text anew."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from engine.heads.mtp import load_mtp
from engine.heads.tensors import HeadError
from engine.model.loader import LoadedModel, load
from engine.model.support import MODULE_FAMILIES, unsupported_reason
from tests.engine.conftest import MakeEngine, generate, request
from tests.engine.orchard import with_shape
from tests.engine.test_eagle_drafts import Watch
from tests.engine.test_families import documented
from tests.tiny import VOCABULARY, make_model_dir
from tests.tiny_heads import make_mtp_dir

TESTED = ("deepseek_v3", "glm4_moe", "mellum")
CPU = torch.device("cpu")
RNG = np.random.default_rng(6)
ASKED = [
    request(str(i), RNG.integers(3, VOCABULARY, size=size).tolist(), max_tokens=20)
    for i, size in enumerate((5, 16, 21))
]


@pytest.fixture(scope="module", params=TESTED)
def target_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mtp_dir(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def target(target_dir: Path) -> LoadedModel:
    return load(target_dir, torch.float32, CPU, lambda _: None)


class Oracle:
    """transformers' module over transformers' target."""

    def __init__(self, path: Path) -> None:
        self._target = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        depth = self._target.config.num_hidden_layers
        self._target._keys_to_ignore_on_load_unexpected = [rf"layers\.{depth}\.", r"^mtp\."]
        self._modules = MtpModel.from_pretrained(self._target).eval()

    def draft(self, text: list[int], levels: int) -> list[int]:
        """Row i reads token i + 1 and what was understood of position i; from its own guesses on, its own output."""
        hidden = self._target(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states[-1]
        tokens = text[1:]
        for _ in range(levels):
            said = self._read(tokens, hidden)
            tokens = [*tokens, int(self._modules._project_to_logits(said[0, -1]).argmax())]
            hidden = torch.cat([hidden, said[:, -1:]], dim=1)
        return tokens[len(text) - 1 :]

    def _read(self, tokens: list[int], hidden: Tensor) -> Tensor:
        cache = MtpCache(config=self._modules.config)
        positions = torch.arange(1, len(tokens) + 1)[None]
        return self._modules.forward_layer(0, hidden, positions, cache, input_ids=torch.tensor([tokens]))


@torch.inference_mode()
def test_chains_are_what_transformers_classes_say(
    make_engine: MakeEngine, target: LoadedModel, target_dir: Path
) -> None:
    engine = make_engine("mtp", model=target, max_batch_tokens=16)
    plain = generate(make_engine("none", model=target), *ASKED)
    watch = Watch(engine)
    outputs = generate(engine, *ASKED)
    assert {n: o.tokens for n, o in outputs.items()} == {n: o.tokens for n, o in plain.items()}
    oracle = Oracle(target_dir)
    assert len(watch.seen) > 30
    for text, ask, draft in watch.seen[::3]:
        assert draft.tokens == oracle.draft(text, ask.levels), f"{len(text)} tokens"


def test_trees_of_a_module_change_no_text(make_engine: MakeEngine, target: LoadedModel) -> None:
    plain = generate(make_engine("none", model=target), *ASKED)
    engine = with_shape(make_engine("mtp", model=target, max_batch_tokens=16), levels=3, nodes=9)
    outputs = generate(engine, *ASKED)
    assert {n: o.tokens for n, o in outputs.items()} == {n: o.tokens for n, o in plain.items()}
    assert all(output.report.drafted > 20 for output in outputs.values())


def test_targets_without_a_module_are_refused_by_a_sentence(tiny: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(HeadError, match="transformers loads no multi-token-prediction modules of llama"):
        load_mtp(tiny, lambda _: None)
    none = make_model_dir(tmp_path / "none", "glm4_moe", num_mtp_layers=0)
    with pytest.raises(HeadError, match="its config names none"):
        load_mtp(load(none, torch.float32, CPU, lambda _: None), lambda _: None)
    bare = make_model_dir(tmp_path / "bare", "glm4_moe", num_mtp_layers=1)
    with pytest.raises(HeadError, match=r"module that can be loaded: .*eh_proj"):
        load_mtp(load(bare, torch.float32, CPU, lambda _: None), lambda _: None)


def test_the_families_named_are_those_whose_config_counts_modules_and_whose_targets_run_here() -> None:
    """transformers' loading goes by that count."""
    folder = Path(transformers.models.__file__).parent
    counting = {
        path.parent.name
        for path in folder.glob("*/configuration_*.py")
        if re.search(r"^    num_mtp_layers: int", path.read_text(), re.MULTILINE)
    }
    found = {kind for kind in counting if kind in CONFIG_MAPPING and runs(CONFIG_MAPPING[kind])}
    assert found == set(MODULE_FAMILIES)
    tested, others = documented("Multi-token-prediction modules").values()
    assert (tested, others) == (set(TESTED), found - set(TESTED))


def runs(config_class: type) -> bool:
    models = AutoModelForCausalLM._model_mapping
    return config_class in models and unsupported_reason(config_class(), models[config_class]) is None
