"""Reports that are of no step. No torch."""

from collections.abc import Sequence
from typing import Final

from engine.api import KVUsage, Output, PhaseSeconds, StepReport
from policies.base import LoadState

NO_TIME: Final = PhaseSeconds(schedule=0.0, draft=0.0, verify=0.0, commit=0.0)


def of_no_step(
    kv: KVUsage,
    *,
    step: int = 0,
    running: int = 0,
    waiting: int = 0,
    load_state: LoadState = LoadState.FULL,
    outputs: Sequence[Output] = (),
    failed: str | None = None,
) -> StepReport:
    """How things stand, and what requests are told. step: the last that there was."""
    return StepReport(
        step=step,
        phases=NO_TIME,
        rows=0,
        prefill_rows=0,
        running=running,
        waiting=waiting,
        committed=0,
        kv=kv,
        load_state=load_state,
        rounds=[],
        outputs=list(outputs),
        failed=failed,
    )
