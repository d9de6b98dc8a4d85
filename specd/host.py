"""What machine this is, as far as it matters to how fast a step is. None of it tells whose it is."""

import os
import platform
from pathlib import Path
from typing import Final

_CPUINFO: Final = Path("/proc/cpuinfo")
_GPUS: Final = Path("/proc/driver/nvidia/gpus")


def cpu_model(cpuinfo: Path = _CPUINFO) -> str:
    """The name by which the processor calls itself."""
    if not cpuinfo.exists():
        return platform.processor()
    return _field(cpuinfo, "model name") or platform.processor()


def gpu_model(gpus: Path = _GPUS) -> str:
    """The name of the first GPU; "unknown GPU" where the driver does not say."""
    found = (_field(file, "Model") for file in sorted(gpus.glob("*/information")))
    return next(filter(None, found), "unknown GPU")


def cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0))


def _field(file: Path, name: str) -> str:
    lines = (line.partition(":") for line in file.read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")
