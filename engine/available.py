"""Memory that can still be allocated here."""

from collections.abc import Iterator
from pathlib import Path

import torch


def available_bytes(device: torch.device, root: Path = Path("/")) -> int:
    """Bytes that can be allocated: on the host also within the limits of the control groups it runs in."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min([_host_bytes(root / "proc/meminfo"), *_group_bytes(root)])


def mib(size: int) -> str:
    """Rounded up: what is there must not read as nothing."""
    return f"{-(-size >> 20)} MiB" if size else "0 MiB"


def weights_shortage(model: Path, available: int) -> str | None:
    """Why a model directory cannot even be loaded, or None."""
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    if weights <= available:
        return None
    return (
        f"the weights in {model} are {mib(weights)} and {mib(available)} of memory are available: "
        "take a smaller model"
    )


def _host_bytes(meminfo: Path) -> int:
    lines = meminfo.read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _group_bytes(root: Path) -> Iterator[int]:
    """What the limits of this process' control groups, and of those around them, leave."""
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else ():
        number, controllers, path = line.split(":", 2)
        if number == "0":  # version 2: one tree
            yield from _leaves(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            yield from _leaves(
                root / "sys/fs/cgroup/memory",
                path,
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )


def _leaves(mount: Path, path: str, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    """For a group and those around it that have a limit. In a container the path may not be seen from inside."""
    group = mount / path.lstrip("/")
    for at in (group, *group.parents):
        most = _text(at / limit) if at.is_relative_to(mount) else None
        if most is not None and most != "max":
            cached = _stat(at / "memory.stat", reclaimable)
            yield max(int(most) - int((at / usage).read_text()) + cached, 0)


def _text(file: Path) -> str | None:
    """None where there is no such file, or where it is not for us to read: no limit then that we could heed."""
    try:
        return file.read_text().strip()
    except OSError:
        return None


def _stat(file: Path, name: str) -> int:
    """One line of a memory.stat: file pages that go when memory is wanted count as used there."""
    lines = file.read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), 0)
