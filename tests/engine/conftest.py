"""An engine over a tiny model, fp32, whose KV pool is checked after every test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from msgspec import structs

from engine.api import DraftSettings, Launch, Output, Request, SamplingParams
from engine.core import Engine
from engine.draft.model_part import ModelPart
from engine.draft.registry import Parts
from engine.kernels.native import NativeOps, build
from engine.model.loader import LoadedModel, load
from engine.sequence import text_id
from policies.settings import LoadSettings, PolicySettings
from tests.kernels import compiled
from tests.tiny import make_model_dir, make_noisy_dir, make_tokenizer
from tests.tiny_heads import make_eagle_dir, make_medusa_dir

UNCAPPED = LoadSettings(table=((1024, 16),), off_above=1024, resume_at=1024, dwell_steps=0)
MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny(tiny_dir: Path) -> LoadedModel:
    return load(tiny_dir, torch.float32, torch.device("cpu"), lambda _: None)


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory)


@pytest.fixture(scope="session")
def squeezing(kernel_cache: Path) -> NativeOps:
    """The native kernels, where they have those of squeezed weights."""
    ops = NativeOps(build(kernel_cache), torch.bfloat16)
    if not ops.squeezes:
        pytest.skip("needs a processor with AVX512-BF16; elsewhere other forwards run")
    return ops


@pytest.fixture(scope="session")
def tiny_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An EAGLE head for the tiny model that knows nothing, and hardly ever guesses right."""
    return make_eagle_dir(tmp_path_factory.mktemp("head"), scale=4.0)


@pytest.fixture(scope="session")
def near_dir(tmp_path_factory: pytest.TempPathFactory, tiny_dir: Path) -> Path:
    """The tiny model with some noise on its weights: a draft that is right more often than not."""
    return make_noisy_dir(tiny_dir, tmp_path_factory.mktemp("near"), noise=0.06)


@pytest.fixture(scope="session")
def near_draft(near_dir: Path) -> LoadedModel:
    return load(near_dir, torch.float32, torch.device("cpu"), lambda _: None)


@pytest.fixture(scope="session")
def tiny_heads(tiny_head: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Heads that hardly ever guess right, by the kind of their proposer."""
    return {"eagle": tiny_head, "medusa": make_medusa_dir(tmp_path_factory.mktemp("medusa"))}


@pytest.fixture
def make_engine(
    tiny: LoadedModel, near_draft: LoadedModel, tiny_heads: dict[str, Path]
) -> Iterator[MakeEngine]:
    """Engines over the tiny model; at the end none may hold a block."""
    made: list[Engine] = []

    def make(
        kind: str = "ngram",
        *,
        k: int = 3,
        skip: tuple[int, ...] | None = None,
        head: Path | None = None,  # None: a tiny one of the kind
        model: LoadedModel = tiny,
        drafts: LoadedModel | None = None,  # for kind "model"; None takes one that is near the target
        part: ModelPart | None = None,  # the same, as it was loaded
        **launch: int,  # prefix_cache included
    ) -> Engine:
        head = head or tiny_heads.get(kind, Path())
        draft = DraftSettings(kinds=(kind,), ngram_min=1, ngram_max=3, skip_layers=skip, head_path=str(head))
        policy = PolicySettings(kind="static", static_k=k, k_max=16, load=UNCAPPED, tree_nodes=0)
        settings = {"kv_bytes": 1 << 20, "block_size": 4, **launch}
        part = part or ModelPart(model, drafts or near_draft)
        parts = Parts({"model": part}) if kind == "model" else None
        engine = Engine(
            Launch(model_path="", draft=draft, policy=policy, **settings), model, make_tokenizer(), parts
        )
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.check_integrity()
        assert not engine.has_work, "a test left requests in its engine"
        assert engine.kv_usage().used == 0, "blocks leaked"


def request(name: str, prompt: list[int], **changes: object) -> Request:
    """A greedy request of 24 tokens that ignores end-of-sequence, unless told otherwise."""
    own = {
        key: changes.pop(key)
        for key in ("continues", "speculate", "k", "n", "traffic_class")
        if key in changes
    }
    sampling = {"max_tokens": 24, "temperature": 0.0, "ignore_eos": True, **changes}
    return Request(id=name, prompt=prompt, sampling=SamplingParams(**sampling), **own)


def finish(engine: Engine) -> dict[str, Output]:
    """Step until nothing is left, checking integrity each time; each text's outputs joined into its last one.

    Text 0 goes by the request's id, text i by `id#i`.
    """
    joined: dict[str, Output] = {}
    while engine.has_work:
        for output in engine.step().outputs:
            name = text_id(output.id, output.index)
            before = joined.get(name)
            joined[name] = output if before is None else _join(before, output)
        engine.check_integrity()
    return joined


def _join(before: Output, last: Output) -> Output:
    logprobs = None if last.logprobs is None else [*(before.logprobs or []), *last.logprobs]
    return structs.replace(
        last,
        tokens=before.tokens + last.tokens,
        logprobs=logprobs,
        prompt_logprobs=before.prompt_logprobs or last.prompt_logprobs,
    )


def generate(engine: Engine, *requests: Request) -> dict[str, Output]:
    for each in requests:
        engine.submit(each)
    return finish(engine)
