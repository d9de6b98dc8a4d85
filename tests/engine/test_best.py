"""The likeliest token of each row, as torch says it, row by row."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.verify.best import best

NAN = float("nan")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(
            st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 1.5, 3e38, float("inf"), -float("inf")]),
            min_size=9,
            max_size=9,
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_it_is_the_first_of_the_largest(rows: list[list[float]], dtype: torch.dtype) -> None:
    logits = torch.tensor(rows).to(dtype)
    tokens, finite = best(logits)
    for row, token, ok in zip(logits.float(), tokens.tolist(), finite.tolist(), strict=True):
        assert token == int((row == row.max()).nonzero()[0])
        assert ok == bool(row.max().isfinite())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_row_with_a_nan_of_either_sign_is_not_finite(dtype: torch.dtype, sign: int) -> None:
    logits = torch.ones(3, 40, dtype=dtype)
    logits[1, 17] = torch.copysign(torch.tensor(NAN), torch.tensor(float(sign)))
    logits[2] = -1.0
    logits[2, 3] = torch.copysign(torch.tensor(NAN), torch.tensor(float(sign)))
    assert best(logits)[1].tolist() == [True, False, False]
