"""Where a plain decode step spends its time: in the model's forward, in its linears alone, and in Python around it.

A clock is wrapped around the forward of one run that is not otherwise measured. The linears are run by themselves, all
of them once in the order of the model, with as many rows.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.contenders import Ours, Prompts
from engine.kernels.native import NativeOps
from engine.model.fused import FusedForward
from engine.model.runner import Runner

Shares = dict[str, float]
_REPEATS = 9


def where_time_goes(ours: Ours, prompts: Prompts, tokens: int) -> Shares:
    """Milliseconds, medians of the steps in which all prompts decode. "linears alone" where the fused forward runs."""
    steps = _steps(ours, prompts, tokens)
    step = statistics.median(whole for whole, _ in steps)
    forward = statistics.median(inner for _, inner in steps)
    found = {"step": step, "forward": forward, "around it": step - forward}
    linears = _linears(ours, len(prompts))
    if linears is not None:
        found["linears alone"] = statistics.median(_seconds(linears) for _ in range(_REPEATS))
    return {name: 1e3 * seconds for name, seconds in found.items()}


def _steps(ours: Ours, prompts: Prompts, tokens: int) -> list[tuple[float, float]]:
    """(seconds of the step, of its forward), for each step that only decodes."""
    original_step, original_run = ours.engine.step, Runner.run
    found: list[tuple[float, float]] = []
    inner = 0.0

    def run(*args: Any) -> Any:
        nonlocal inner
        begin = time.perf_counter()
        result = original_run(*args)
        inner += time.perf_counter() - begin
        return result

    def step() -> Any:
        nonlocal inner
        inner, begin = 0.0, time.perf_counter()
        report = original_step()
        if report.prefill_rows == 0 and report.rows == len(prompts):
            found.append((time.perf_counter() - begin, inner))
        return report

    with patch.object(ours.engine, "step", step), patch.object(Runner, "run", run):
        ours.reports(prompts, tokens)
    return found


def _linears(ours: Ours, rows: int) -> Callable[[], None] | None:
    loaded = ours.engine._loaded  # noqa: SLF001  nobody else has a use for it
    forward, native = loaded.forward, loaded.kernels
    if not isinstance(forward, FusedForward) or not isinstance(native, NativeOps):
        return None
    linears = [linear.structure for linear in forward.linears]
    inputs = {linear.inputs: torch.randn(-(-rows // 16) * 16, linear.inputs).bfloat16() for linear in linears}

    def run() -> None:
        for linear in linears:
            native.squeezed_linear(linear, inputs[linear.inputs], rows)

    return run


def _seconds(function: Callable[[], None]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin
