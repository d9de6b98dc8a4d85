"""Linears whose weights are int8 with one scale per output channel; activations stay as they are.

    W[o, i] ~ values[o, i] * scales[o]          values in [-127, 127], scales in the model's dtype

`FastInt8Linear` takes one of two kernels, by the number of rows. Both read the same integers and the same scales;
integers up to 127 are exact in bfloat16, so no path rounds a weight a second time. What differs is where sums are
rounded: once, at the end (few rows), or before and after the scale (many rows, and the specification).
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.model.quantised import QuantisedLinear

_LARGEST: Final = 127
_SAMPLE_BYTES: Final = 16 << 20  # of weights that are timed; in a model they do not stay in the caches either
_ROWS: Final = (1, 2, 4, 8, 16, 32, 64)


class Int8Plan(NamedTuple):
    """How the linears of a model are computed."""

    few_rows: int
    """Up to so many rows go through the kernel that reads int8; 0 leaves all to the other."""
    packed: bool
    """Whether the integers are also kept packed in bfloat16, for many rows: twice their size again. Otherwise many
    rows widen them anew each time."""


class Int8Linear(QuantisedLinear):
    """y = (x values^T) * scales + b."""

    values: Tensor  # [out, in] int8
    scales: Tensor  # [out]
    plan = Int8Plan(0, packed=False)

    def __init__(self, values: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = values.shape
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)
        self.register_buffer("bias", bias)

    @classmethod
    def of(cls, linear: nn.Linear) -> Self:
        """Each channel's largest weight becomes 127."""
        weight = linear.weight.detach()
        largest = weight.float().abs().amax(dim=1).clamp(min=torch.finfo(torch.float16).tiny)
        # Rounded to the model's dtype first: the integers are chosen for the scale that will be used.
        scales = (largest / _LARGEST).to(weight.dtype)
        values = (weight.float() / scales.float()[:, None]).round().clamp(-_LARGEST, _LARGEST)
        return cls(values.to(torch.int8), scales, None if linear.bias is None else linear.bias.detach())

    @classmethod
    def joined(cls, linears: Sequence[Self]) -> Self:
        """See QuantisedLinear."""
        values, scales = (
            torch.cat([getattr(each, name) for each in linears]) for name in ("values", "scales")
        )
        biases = [each.bias for each in linears if each.bias is not None]
        made = cls(values, scales, torch.cat(biases) if biases else None)
        made.plan = linears[0].plan
        return made

    @classmethod
    def tune(cls, linears: Sequence[Self], *, packed: bool, say: Callable[[str], None]) -> int:
        """Time both kernels on some of the weights."""
        few_rows = (
            few_rows_limit(_times(list(_sample(linears)), packed=packed)) if _reads_int8(linears[0]) else 0
        )
        for linear in linears:
            linear.plan = Int8Plan(few_rows, packed)
        many = "packed bf16" if packed else "widened each time"
        say(
            f"int8: up to {few_rows} rows by the int8 kernel, more by matrix products ({many}), as timed here"
        )
        return sum(2 * linear.values.numel() for linear in linears) if packed else 0

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return _scaled(F.linear(x, self.values.to(x.dtype)), self.scales, self.bias)

    def fast(self) -> "FastInt8Linear":
        """See QuantisedLinear."""
        return FastInt8Linear(self, self.plan)


class FastInt8Linear(nn.Module):
    """The product of an Int8Linear, by the kernel that suits the number of rows."""

    def __init__(self, source: Int8Linear, plan: Int8Plan) -> None:
        super().__init__()
        self.out_features, self.in_features = source.out_features, source.in_features
        self._most = plan.few_rows * source.in_features  # elements of x that are few
        self._values, self._scales, self._bias = source.values, source.scales, source.bias
        self._packed = _pack(source.values) if plan.packed else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return self.few(x) if x.numel() <= self._most else self.many(x)

    def few(self, x: Tensor) -> Tensor:
        """By the kernel that reads int8."""
        rows = x.reshape(-1, self.in_features)
        out = torch._weight_int8pack_mm(rows, self._values, self._scales)  # noqa: SLF001
        out = out.view(*x.shape[:-1], self.out_features)  # a step may want the logits of no row
        return out if self._bias is None else out.add_(self._bias)

    def many(self, x: Tensor) -> Tensor:
        """By matrix products of the model's own dtype."""
        if self._packed is None:
            product = F.linear(x, self._values.to(x.dtype))
        else:
            product = torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")  # noqa: SLF001
        return _scaled(product, self._scales, self._bias)


def few_rows_limit(times: Iterable[tuple[int, float, float]]) -> int:
    """(rows, seconds by the kernel for few, seconds by the one for many), rows ascending -> rows that are still few."""
    limit = 0
    for rows, few, many in times:
        if few >= many:
            break
        limit = rows
    return limit


def _scaled(product: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    return product.mul_(scales) if bias is None else torch.addcmul(bias, product, scales)


def _pack(values: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(values.to(torch.bfloat16), 8)  # type: ignore[no-any-return]  # noqa: SLF001


@torch.inference_mode()
def _reads_int8(linear: Int8Linear) -> bool:
    """Whether this device has a kernel for few rows at all."""
    row = torch.ones(1, linear.in_features, dtype=linear.scales.dtype, device=linear.scales.device)
    try:
        FastInt8Linear(linear, Int8Plan(1, packed=False)).few(row)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _sample(linears: Sequence[Int8Linear]) -> Iterator[Int8Linear]:
    """The first ones of a model, up to a size that tells."""
    taken = 0
    for linear in linears:
        yield linear
        taken += linear.values.numel()
        if taken >= _SAMPLE_BYTES:
            return


@torch.inference_mode()
def _times(linears: Sequence[Int8Linear], *, packed: bool) -> Iterator[tuple[int, float, float]]:
    fast = [FastInt8Linear(linear, Int8Plan(0, packed)) for linear in linears]
    for rows in _ROWS:
        inputs = [
            torch.ones(rows, each.in_features, dtype=each.scales.dtype, device=each.scales.device)
            for each in linears
        ]
        pairs = list(zip(fast, inputs, strict=True))
        yield (
            rows,
            _seconds(lambda: [each.few(x) for each, x in pairs]),  # noqa: B023  called at once
            _seconds(lambda: [each.many(x) for each, x in pairs]),  # noqa: B023
        )


def _seconds(work: Callable[[], list[Tensor]]) -> float:
    """The best of three; the first one may still have to wake threads."""
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        last = work()[-1]
        last[0, 0].item()  # a device that computes on its own is waited for
        best = min(best, time.perf_counter() - began)
    return best
