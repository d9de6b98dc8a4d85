"""What this machine's processor can do, as Linux tells."""

import platform
from pathlib import Path
from typing import Final, Literal

_CPUINFO: Final = Path("/proc/cpuinfo")
_BFLOAT16: Final = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def features(cpuinfo: Path = _CPUINFO) -> str:
    """The line that lists them; the name of the architecture where there is none."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def multiplies_bfloat16(cpuinfo: Path = _CPUINFO) -> bool:
    """Whether it has instructions for that. Without them torch's own products of matrices in bfloat16 are many times
    slower than those in float32.
    """
    return not _BFLOAT16.isdisjoint(features(cpuinfo).split())


def quick_format() -> Literal["bfloat16", "float32"]:
    """The number format in which this processor multiplies matrices fastest."""
    return "bfloat16" if multiplies_bfloat16() else "float32"
