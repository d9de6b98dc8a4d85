"""The native kernels do what the torch operations do; the batch's other rows never matter."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.attention.native import NativePagedAttention
from engine.attention.paged import Extras, PagedAttention
from engine.batch import Span, pack
from engine.kernels import native
from engine.kernels.native import NativeError, NativeOps, build
from engine.kernels.reference import TorchOps
from engine.kv.memory import KVMemory, LayerShape
from engine.kv.pool import BlockPool
from engine.kv.table import BlockTable
from engine.model.loader import load
from engine.model.packed import PackedLinear, can_pack
from tests.engine.conftest import MakeEngine, generate, request

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1.6e-2}  # one rounding of values of about 1 to 2
compiled = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler: apt-get install g++")
same_fixture = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def library(kernel_cache: Path) -> Path:
    return build(kernel_cache)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def ops(request: pytest.FixtureRequest, library: Path) -> NativeOps:
    found = NativeOps(library, request.param)
    found.dtype = request.param
    return found


def check_close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    size = wanted.float().abs().max().clamp(min=1.0)
    assert float((got.float() - wanted.float()).abs().max() / size) <= TOLERANCE[got.dtype]


@compiled
@pytest.mark.parametrize(("rows", "size"), [(1, 576), (3, 17), (80, 576)])
@pytest.mark.parametrize("with_delta", [True, False])
def test_add_rms_norm(ops: NativeOps, rows: int, size: int, with_delta: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, size, generator=generator).to(ops.dtype)
    delta = torch.randn(rows, size, generator=generator).to(ops.dtype) if with_delta else None
    weight = torch.rand(size, generator=generator)
    mine, theirs = hidden.clone(), hidden.clone()
    check_close(
        ops.add_rms_norm(mine, delta, weight, 1e-5), TorchOps().add_rms_norm(theirs, delta, weight, 1e-5)
    )
    assert torch.equal(mine, theirs), "the residual stream itself is rounded alike"


@compiled
@pytest.mark.parametrize(("rows", "size"), [(1, 1536), (5, 13), (40, 1536)])
def test_silu_mul(ops: NativeOps, rows: int, size: int) -> None:
    gate_up = (torch.randn(rows, 2 * size, generator=torch.Generator().manual_seed(1)) * 4).to(ops.dtype)
    check_close(ops.silu_mul(gate_up), TorchOps().silu_mul(gate_up))


@compiled
@pytest.mark.parametrize(("size_in", "size_out"), [(576, 960), (1536, 577), (13, 1)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_linear_of_one_row(ops: NativeOps, size_in: int, size_out: int, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(1, size_in, generator=generator).to(ops.dtype)
    weight = (torch.randn(size_out, size_in, generator=generator) * size_in**-0.5).to(ops.dtype)
    bias = torch.randn(size_out, generator=generator).to(ops.dtype) if with_bias else None
    check_close(ops.single_row(x, weight, bias), F.linear(x, weight, bias))


@compiled
@pytest.mark.skipif(
    not can_pack(torch.bfloat16, CPU), reason="this processor has no packed bf16 kernels (needs AVX-512)"
)
def test_a_packed_linear_says_the_same_for_a_row_alone_and_in_company(library: Path) -> None:
    linear = torch.nn.Linear(64, 96, dtype=torch.bfloat16)
    packed = PackedLinear(linear.weight, linear.bias, NativeOps(library, torch.bfloat16))
    rows = torch.randn(5, 64, generator=torch.Generator().manual_seed(5)).bfloat16()
    with torch.inference_mode():
        check_close(torch.cat([packed(row[None]) for row in rows]), packed(rows))


@compiled
def test_silu_of_large_values_neither_overflows_nor_vanishes(ops: NativeOps) -> None:
    gate_up = torch.tensor([[-1e4, -90.0, 0.0, 90.0, 1e4, 1, 1, 1, 1, 1]]).to(ops.dtype)
    wanted = [0.0, 0.0, 0.0, 90.0, gate_up[0, 4].item()]
    assert ops.silu_mul(gate_up)[0].tolist() == pytest.approx(wanted, abs=1e-30)


@compiled
def test_a_fault_stays_visible(ops: NativeOps) -> None:
    """NaN in, NaN out: that is how a broken model is noticed."""
    hidden = torch.full((1, 8), torch.nan).to(ops.dtype)
    assert ops.add_rms_norm(hidden, None, torch.ones(8), 1e-5).isnan().all()
    assert ops.silu_mul(torch.full((1, 8), torch.nan).to(ops.dtype)).isnan().all()


@compiled
def test_rotate_in_place_on_strided_rows(ops: NativeOps) -> None:
    rows = torch.randn(6, 5, 16, generator=torch.Generator().manual_seed(2)).to(ops.dtype)
    angles = torch.rand(6, 16, generator=torch.Generator().manual_seed(3)) * 6
    wanted = TorchOps().rotate(rows[:, :3].clone(), angles.cos(), angles.sin())
    kept = rows[:, 3:].clone()
    check_close(ops.rotate(rows[:, :3], angles.cos(), angles.sin()), wanted)
    assert torch.equal(rows[:, 3:], kept)


@compiled
@same_fixture
@given(st.data())
def test_attention_over_ragged_spans_equals_torch(ops: NativeOps, data: st.DataObject) -> None:
    """Any mix of decodes, verifies and prompt chunks, window or none, odd block sizes and head widths."""
    dim, block = data.draw(st.sampled_from([16, 64, 80, 128])), data.draw(st.sampled_from([1, 4, 16, 20]))
    kv_heads, share = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    window = data.draw(st.sampled_from([None, 1, 5, 40]))
    lengths = data.draw(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), min_size=1, max_size=5))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    pool = BlockPool(sum(-(-(before + rows) // block) for before, rows in lengths), block)
    np.random.default_rng(0).shuffle(pool._free)
    memory = KVMemory({0: LayerShape(kv_heads, dim, dim)}, pool.total, block, ops.dtype, CPU)
    memory.keys[0].normal_(generator=generator)
    memory.values[0].normal_(generator=generator)
    spans = []
    for before, rows in lengths:
        table = BlockTable(pool)
        table.reserve(before + rows)
        spans.append(Span(table, before, [0] * rows, 1))
    batch = pack(spans, CPU)
    qkv = torch.randn(batch.rows, (share + 2) * kv_heads, dim, generator=generator).to(ops.dtype)
    q, k, v = qkv.split([share * kv_heads, kv_heads, kv_heads], dim=1)
    extras = Extras(scaling=dim**-0.5, window=window)
    mine = NativePagedAttention(ops, memory, batch).attend(0, q, k, v, extras)
    theirs = PagedAttention(memory, batch).attend(0, q, k, v, extras)
    check_close(mine, theirs)


@compiled
@pytest.mark.parametrize("kind", ["none", "ngram", "layer-skip"])
def test_an_engine_on_native_kernels_says_the_same_as_one_on_torch(
    make_engine: MakeEngine, tiny_dir: Path, library: Path, kind: str
) -> None:
    said: list[str] = []
    model = load(tiny_dir, torch.float32, CPU, said.append, cache=library.parent)
    assert "self-check passed: lean forward, native kernels" in said
    requests = [
        request("greedy", [5, 6, 7] * 9),
        request("sampled", [8, 9] * 30, temperature=0.8, seed=3),
        request("long", list(range(3, 90)), k=6),
    ]
    fast = generate(make_engine(kind, model=model), *requests)
    plain = generate(make_engine(kind), *requests)
    assert {n: o.tokens for n, o in fast.items()} == {n: o.tokens for n, o in plain.items()}


@compiled
def test_a_library_is_built_once(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(native, "_compile", never)
    assert build(library.parent) == library


def test_without_a_compiler_the_engine_says_so_and_works(
    tiny_dir: Path, make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(NativeError, match="install g\\+\\+"):
        build(tmp_path)
    said: list[str] = []
    model = load(tiny_dir, torch.float32, CPU, said.append, cache=tmp_path)
    assert any("no native kernels" in line for line in said)
    assert generate(make_engine(model=model), request("a", [5]))["a"].finish == "length"


def test_a_dtype_that_the_kernels_do_not_know_is_refused_by_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NativeError, match="float16"):
        NativeOps(tmp_path / "none.so", torch.float16)
