"""Twelve bits hold a bf16 weight: each comes back bit by bit, and products are those of the weights as they were."""

import shutil

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.kernels.native import NativeOps
from engine.model.squeezed import Arena, Squeezed, squeezed_bytes

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None, reason="needs a C++ compiler: apt-get install g++"
)


@pytest.fixture(scope="module")
def native(squeezing: NativeOps) -> NativeOps:
    return squeezing


def squeezed(native: NativeOps, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Squeezed:
    return Squeezed(native, Arena(squeezed_bytes(*weight.shape)), weight, bias)


def unsqueezed(found: Squeezed, outputs: int, inputs: int) -> np.ndarray:
    """The bits of all weights, read as squeezed.h describes their places; exceptions' are those of their values."""
    words = found._data.numpy().view(np.uint16).reshape(-1, inputs // 32, 2, 4, 3, 32).astype(np.uint32)
    exponents = found._exponents.numpy().view(np.uint16).astype(np.uint32)
    ab, cd, names = words[..., 0, :], words[..., 1, :], words[..., 2, :]
    rows = []
    for row, shared in enumerate((ab, ab, cd, cd)):
        bits = shared if row % 2 == 0 else (shared << 8 | shared >> 8)
        rows.append(bits & 0x807F | exponents[names >> 4 * row & 15])
    tiles = np.stack(rows, axis=-2).reshape(
        -1, inputs // 32, 2, 16, 16, 2
    )  # strip, block, half, pair, output, of pair
    bits = tiles.transpose(0, 2, 4, 1, 3, 5).reshape(-1, inputs)
    first, place, value = (x.numpy() for x in found._exceptions)
    for strip in range(len(first) - 1):
        for e in range(first[strip], first[strip + 1]):
            output, column = place[e]
            bits[32 * strip + output, column] = (
                torch.tensor(value[e]).bfloat16().view(torch.int16).item() & 0xFFFF
            )
    return bits[:outputs]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    outputs=st.sampled_from([16, 32, 48, 96]),
    inputs=st.sampled_from([32, 96]),
    wild=st.floats(0, 0.2),
    seed=st.integers(0, 10**6),
)
def test_every_weight_comes_back(
    native: NativeOps, outputs: int, inputs: int, wild: float, seed: int
) -> None:
    """Ordinary weights, and among them any bits at all: zeros, subnormals, infinities, values without a name."""
    rng = np.random.default_rng(seed)
    weight = torch.from_numpy(rng.normal(size=(outputs, inputs))).bfloat16()
    bits = torch.from_numpy(rng.integers(-(2**15), 2**15, size=weight.shape, dtype=np.int16))
    bits[(bits & 0x7F80) == 0x7F80] = 0x7F80  # a NaN's payload is nobody's business
    chosen = torch.from_numpy(rng.random(weight.shape) < wild)
    weight[chosen] = bits.view(torch.bfloat16)[chosen]
    weight[0, :2] = torch.tensor([0.0, 1e-39])
    wanted = weight.view(torch.int16).numpy().astype(np.int32) & 0xFFFF
    got = unsqueezed(squeezed(native, weight), outputs, inputs)
    zero = (wanted & 0x7FFF) == 0
    assert (got[~zero] == wanted[~zero]).all()
    assert ((got[zero] & 0x7F80) == 0).all(), "a zero may lose its sign, nothing else"


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 15, 16, 17, 32, 33, 64, 100])
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 64), (48, 32), (960, 576)])
def test_products_are_those_of_the_weights(native: NativeOps, rows: int, outputs: int, inputs: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = (torch.randn(outputs, inputs, generator=generator) * 0.05).bfloat16()
    weight[3, 5], weight[outputs - 1, inputs - 1], weight[0, 0] = 300.0, 1e-20, 0.0
    bias = torch.randn(outputs, generator=generator)
    x = torch.zeros(-(-rows // 16) * 16, inputs).bfloat16()
    x[:rows] = torch.randn(rows, inputs, generator=generator).bfloat16()
    found = squeezed(native, weight, bias)
    got = native.squeezed_linear(found.structure, x, rows).double()
    wanted = x[:rows].double() @ weight.double().T + bias.double()
    assert ((got - wanted).abs() <= 2**-8 * wanted.abs() + 1e-4 * inputs**0.5).all(), (
        "beyond one rounding to bf16"
    )


def test_it_takes_three_quarters_of_the_memory(native: NativeOps) -> None:
    weight = (torch.randn(960, 576) * 0.05).bfloat16()
    assert squeezed(native, weight).bytes < 0.755 * 2 * weight.numel()
