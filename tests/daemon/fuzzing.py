"""How many cases a fuzzer makes: as few as the suite has time for, always the same, or as many as FUZZ_CASES says."""

import os
from collections.abc import Sequence
from typing import Final

from hypothesis import HealthCheck, Phase, settings

_CASES: Final = int(os.environ.get("FUZZ_CASES", "0"))


def fuzzed(few: int, *, share: int = 1, phases: Sequence[Phase] = tuple(Phase)) -> settings:
    """few: of the suite. share: of so many that fuzz the same thing together, such as the endpoints of a listener."""
    return settings(
        max_examples=-(-_CASES // share) if _CASES else few,
        derandomize=not _CASES,
        deadline=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
