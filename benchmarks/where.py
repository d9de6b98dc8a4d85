"""Where a decode step spends its time: linears, attention, small operations, sampling, and Python around them.

Clocks are wrapped around the calls of one run that is not otherwise measured: some 400 calls a step at well under a
microsecond each.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import engine.core
from benchmarks.contenders import Ours, Prompts
from engine.attention.native import NativePagedAttention
from engine.attention.paged import PagedAttention
from engine.kernels.native import NativeOps
from engine.kernels.reference import TorchOps
from engine.model.packed import PackedLinear, PlainLinear

Shares = dict[str, float]
_SMALL = ("add_rms_norm", "silu_mul", "rotate")


def where_time_goes(ours: Ours, prompts: Prompts, tokens: int) -> Shares:
    """Milliseconds of a decode step by kind of work, mean of the middle half of the steps; "step" is the whole."""
    spent: Shares = {}
    with _clocks(spent):
        steps = [step for step in _steps(ours, prompts, tokens, spent) if step["prefill"] == 0]
    steps.sort(key=lambda step: step["step"])
    middle = steps[len(steps) // 4 : -(len(steps) // 4) or None]
    mean = {name: sum(step[name] for step in middle) / len(middle) * 1e3 for name in middle[0]}
    del mean["prefill"]
    mean["python and rest"] = mean["step"] - sum(value for name, value in mean.items() if name != "step")
    return mean


def _steps(ours: Ours, prompts: Prompts, tokens: int, spent: Shares) -> list[Shares]:
    original = ours.engine.step
    rows: list[Shares] = []

    def step() -> Any:
        spent.update({"linears": 0.0, "attention": 0.0, "small operations": 0.0, "sampling": 0.0})
        begin = time.perf_counter()
        report = original()
        rows.append({**spent, "step": time.perf_counter() - begin, "prefill": float(report.prefill_rows)})
        return report

    with patch.object(ours.engine, "step", step):
        ours.reports(prompts, tokens)
    return rows


@contextmanager
def _clocks(spent: Shares) -> Iterator[None]:
    places: list[tuple[Any, str, str]] = [
        (PackedLinear, "forward", "linears"),
        (PlainLinear, "forward", "linears"),
        (NativePagedAttention, "attend", "attention"),
        (PagedAttention, "attend", "attention"),
        (engine.core, "verify", "sampling"),
        *((ops, name, "small operations") for ops in (NativeOps, TorchOps) for name in _SMALL),
    ]
    patches = [
        patch.object(owner, name, _timed(getattr(owner, name), kind, spent)) for owner, name, kind in places
    ]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def _timed(function: Callable[..., Any], kind: str, spent: Shares) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        result = function(*args, **kwargs)
        spent[kind] = spent.get(kind, 0.0) + time.perf_counter() - begin
        return result

    return timed
