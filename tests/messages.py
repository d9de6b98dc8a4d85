"""Messages of an engine, in which a test names what it is about."""

from typing import Any

from msgspec import structs

from engine.api import KVUsage, Ready, StepReport
from engine.reports import of_no_step

_READY = Ready(
    model_path="/m",
    model_type="llama",
    dtype="bfloat16",
    quantization="none",
    max_context=64,
    kv_blocks=4,
    block_size=16,
    proposers=("ngram",),
    memory={},
)


def a_ready(**values: Any) -> Ready:
    return structs.replace(_READY, **values)


def a_report(step: int, **values: Any) -> StepReport:
    """Of a step of one row."""
    plain = of_no_step(KVUsage(free=3, used=1), step=step, running=1)
    return structs.replace(plain, **({"rows": 1, "committed": 1} | values))
