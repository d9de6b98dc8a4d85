"""A step that a policy may be told of, where a test is about something else."""

from policies.base import StepSeen

A_STEP = StepSeen(
    now=0.0, seconds=0.02, rows=1, prefill_rows=0, padding=0, sequences=1, context=100, committed=1
)
