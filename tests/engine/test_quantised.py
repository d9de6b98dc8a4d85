"""Quantised linears: each fast path is its specification, and the quantised model is the target, exactly."""

from pathlib import Path

import pytest
import torch
from msgspec import structs
from torch import Tensor, nn

from engine.api import Launch
from engine.model.fp8 import Fp8Linear
from engine.model.int8 import FastInt8Linear, Int8Linear, Int8Plan, few_rows_limit
from engine.model.loader import LoadedModel, _weights, load
from engine.model.packed import can_pack, make_linear, pack_linears
from engine.model.quantised import QuantisedLinear, quantise_linears
from engine.model.support import UnsupportedModelError, quantization_reason
from engine.start import start
from engine.worker import _ready
from tests.engine.conftest import MakeEngine, generate, request
from tests.engine.test_lossless import PROMPTS
from tests.tiny import make_model_dir

CPU = torch.device("cpu")
needs_packing = pytest.mark.skipif(
    not can_pack(torch.bfloat16, CPU), reason="this processor has no packed bf16 kernels (needs AVX-512)"
)


def linear(
    size_in: int = 64, size_out: int = 96, *, dtype: torch.dtype = torch.bfloat16, bias: bool = True
) -> nn.Linear:
    torch.manual_seed(size_in + size_out)
    return nn.Linear(size_in, size_out, bias=bias, dtype=dtype)


def rows(count: int, size: int = 64, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(count)).to(dtype)


def difference(got: Tensor, wanted: Tensor) -> float:
    assert got.shape == wanted.shape
    if not wanted.numel():
        return 0
    return float((got.float() - wanted.float()).abs().max() / wanted.float().abs().max())


def test_int8_weights_are_within_half_a_step_of_the_plain_ones() -> None:
    plain = linear(dtype=torch.float32)
    made = Int8Linear.of(plain)
    step = made.scales[:, None]
    assert (made.values * step - plain.weight).abs().le(step / 2 * (1 + 1e-5)).all()
    assert made.values.abs().amax(dim=1).eq(127).all()


def test_a_channel_of_zeros_stays_one() -> None:
    plain = linear()
    with torch.no_grad():
        plain.weight[3] = 0
    assert Int8Linear.of(plain)(rows(2))[:, 3].eq(plain.bias[3]).all()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("packed", [pytest.param(True, marks=needs_packing), False])
@torch.inference_mode()
def test_both_int8_kernels_compute_the_specification(dtype: torch.dtype, bias: bool, packed: bool) -> None:
    """With the very same weights; only sums are rounded elsewhere, so float32 agrees to its own precision."""
    made = Int8Linear.of(linear(dtype=dtype, bias=bias))
    fast = FastInt8Linear(made, Int8Plan(4, packed=packed and dtype == torch.bfloat16))
    bound = 1e-5 if dtype == torch.float32 else 2e-2
    for count in (0, 1, 4, 5, 40):
        x = rows(count, dtype=dtype)
        for got in (fast(x), fast.few(x), fast.many(x)):
            assert difference(got, made(x)) <= bound
    assert fast(rows(3, dtype=dtype)[None]).shape == (1, 3, 96)


def test_the_kernel_is_chosen_by_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = FastInt8Linear(Int8Linear.of(linear()), Int8Plan(4, packed=False))
    taken: list[str] = []
    monkeypatch.setattr(fast, "few", lambda _: taken.append("few"))
    monkeypatch.setattr(fast, "many", lambda _: taken.append("many"))
    for count in (1, 4, 5):
        fast(rows(count))
    assert taken == ["few", "few", "many"]


@pytest.mark.parametrize(
    ("times", "limit"),
    [
        ([(1, 1.0, 2.0), (2, 1.5, 2.0), (4, 3.0, 2.5), (8, 1.0, 3.0)], 2),
        ([(1, 2.0, 1.0)], 0),
        ([(1, 1.0, 2.0), (64, 1.0, 2.0)], 64),
    ],
)
def test_few_ends_where_the_other_kernel_is_first_faster(
    times: list[tuple[int, float, float]], limit: int
) -> None:
    assert few_rows_limit(iter(times)) == limit


def test_without_a_kernel_for_few_rows_all_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> Tensor:
        raise NotImplementedError

    monkeypatch.setattr(torch, "_weight_int8pack_mm", missing)
    made, said = Int8Linear.of(linear()), []
    assert Int8Linear.tune([made], packed=False, say=said.append) == 0
    assert said[0].startswith("int8: up to 0 rows by the int8 kernel")
    assert difference(made.fast()(rows(1)), made(rows(1))) == 0


@pytest.mark.parametrize("kind", [Int8Linear, Fp8Linear])
@torch.inference_mode()
def test_linears_joined_say_what_they_say_apart(kind: type[QuantisedLinear]) -> None:
    apart = [kind.of(linear(64, size)) for size in (96, 32)]
    x = rows(5)
    assert difference(kind.joined(apart)(x), torch.cat([each(x) for each in apart], dim=-1)) <= 1e-2
    assert make_linear(apart)(x).shape == (5, 128)


def test_linears_of_two_kinds_are_not_joined() -> None:
    with pytest.raises(TypeError, match="cannot be one product"):
        make_linear([linear(), Int8Linear.of(linear())])


@torch.inference_mode()
def test_the_fp8_product_computes_the_specification() -> None:
    """Where this build of torch has the product on CPU; the same code runs on CUDA."""
    made = Fp8Linear.of(linear())
    fast = made.fast()
    for x in (rows(0), rows(7)):
        try:
            got = fast(x)
        except (RuntimeError, NotImplementedError) as fault:
            pytest.skip(f"no fp8 product here: {fault}")
        assert difference(got, made(x)) <= 1e-2
        assert difference(made(x), linear()(x)) <= 0.1


def test_an_fp8_row_does_not_depend_on_its_company() -> None:
    made = Fp8Linear.of(linear())
    x = torch.cat([rows(1), 1000 * rows(3)])
    assert difference(made(x)[:1], made(x[:1])) <= 1e-2


def test_fp8_leaves_alone_what_its_tiles_cannot_hold() -> None:
    model = nn.Sequential(linear(64, 96), linear(96, 10))
    assert [Fp8Linear.suits(each) for each in model] == [True, False]


@pytest.mark.parametrize(
    ("scheme", "device", "dtype", "sentence"),
    [
        ("fp8", "cpu", "bfloat16", "need a CUDA device"),
        ("fp8", "cuda", "float32", "come out in bfloat16"),
        ("int3", "cpu", "bfloat16", "there are none, int8, fp8"),
        ("int8", "cpu", "float32", None),
        ("fp8", "cuda", "bfloat16", None),
    ],
)
def test_what_cannot_be_quantised_is_refused_by_a_sentence(
    scheme: str, device: str, dtype: str, sentence: str | None
) -> None:
    reason = quantization_reason(scheme, device, dtype)
    assert reason is None if sentence is None else sentence in reason


def test_an_fp8_model_is_refused_on_cpu(tiny_dir: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="CUDA"):
        load(tiny_dir, torch.bfloat16, CPU, lambda _: None, quantization="fp8")


def test_an_old_gpu_is_refused_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    with pytest.raises(UnsupportedModelError, match=r"compute capability 8\.9, this one has 8\.0"):
        quantise_linears(nn.Sequential(linear()), "fp8", torch.device("cuda"))


def test_only_linears_are_quantised_and_the_tied_embedding_stays(tmp_path: Path) -> None:
    model = _weights(make_model_dir(tmp_path, tie_word_embeddings=True), torch.bfloat16).eval()
    before = model.model.embed_tokens.weight.clone()
    made = quantise_linears(model, "int8", CPU)
    assert len(made) == 4 * 7 + 1
    assert torch.equal(model.model.embed_tokens.weight, before)
    assert pack_linears(model) == len(made)
    assert not any(isinstance(module, QuantisedLinear) for module in model.modules())


@pytest.fixture(scope="module")
def exact(tiny_dir: Path) -> LoadedModel:
    return load(tiny_dir, torch.float32, CPU, lambda _: None, quantization="int8")


@pytest.fixture(scope="module")
def said_of_bf16(tiny_dir: Path, kernel_cache: Path) -> tuple[LoadedModel, list[str]]:
    said: list[str] = []
    return load(tiny_dir, torch.bfloat16, CPU, said.append, cache=kernel_cache, quantization="int8"), said


@torch.inference_mode()
def specification(path: Path, tokens: list[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """[T, V]: transformers' forward over the specification of the quantised linears."""
    model = _weights(path, dtype).eval()
    quantise_linears(model, "int8", CPU)
    model.set_attn_implementation("eager")
    return model(torch.tensor([tokens]), use_cache=False).logits[0].float()


@pytest.mark.parametrize("kind", ["none", "ngram", "layer-skip"])
def test_greedy_text_is_the_quantised_models_own(
    make_engine: MakeEngine, exact: LoadedModel, tiny_dir: Path, kind: str
) -> None:
    """In float32 exactly: at 1 row, at k + 1 rows and in prompt chunks alike."""
    outputs = generate(make_engine(kind, model=exact), *(request(name, p) for name, p in PROMPTS.items()))
    for name, prompt in PROMPTS.items():
        said = outputs[name].tokens
        assert said == specification(tiny_dir, prompt + said)[len(prompt) - 1 : -1].argmax(-1).tolist()


@pytest.mark.parametrize("kind", ["none", "ngram", "layer-skip"])
def test_in_bf16_it_differs_from_it_at_near_ties_only(
    make_engine: MakeEngine, said_of_bf16: tuple[LoadedModel, list[str]], tiny_dir: Path, kind: str
) -> None:
    """Each token is the best by the specification in float32, or as good as that."""
    model, _ = said_of_bf16
    outputs = generate(make_engine(kind, model=model), *(request(name, p) for name, p in PROMPTS.items()))
    for name, prompt in PROMPTS.items():
        said = outputs[name].tokens
        law = specification(tiny_dir, prompt + said, torch.bfloat16)[len(prompt) - 1 : -1]
        best, spread = law.max(dim=-1).values, law.max(dim=-1).values - law.min(dim=-1).values
        chosen = law.gather(1, torch.tensor(said)[:, None])[:, 0]
        assert ((best - chosen) <= 0.06 * spread).all(), name


def test_loading_says_what_was_quantised_and_how_it_is_computed(
    said_of_bf16: tuple[LoadedModel, list[str]],
) -> None:
    model, said = said_of_bf16
    assert any(line.startswith("int8: 29 linears") for line in said)
    assert any("rows by the int8 kernel" in line for line in said)
    assert any(line.startswith("self-check passed") for line in said)
    assert model.weight_bytes > 0


def test_the_engine_process_tells_how_its_weights_are_quantised(tiny_dir: Path) -> None:
    launch = Launch(model_path=str(tiny_dir), dtype="float32", quantization="int8", kv_bytes=1 << 20)
    engine = start(launch, lambda _: None)
    assert _ready(engine, launch).quantization == "int8"
    plain = start(structs.replace(launch, quantization="none"), lambda _: None)
    assert engine.memory["weights"] < 0.6 * plain.memory["weights"]
