"""What the engine is going to hold in memory, worked out and compared with what there is before it is allocated.

A refusal with a sentence is better than a process that the kernel kills an hour later: memory that was asked for is
handed out when it is first written.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch

from engine.api import Launch
from engine.model.loader import LoadedModel

# Bytes for each of a verify row's logits beside the logits and their edited copy: the law, the same sorted, and its
# sums in float32, and the sums that a token is drawn by in float64.
_LAW_BYTES: Final = 3 * 4 + 8


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes by use."""

    weights: int
    kv: int
    draft_kv: int
    """Of proposers with a cache of their own."""
    verify: int
    """Logits, laws and activations of the largest step: every running text with the longest draft, and a full share of
    prompts.
    """

    def as_dict(self) -> dict[str, int]:
        """For the wire."""
        return asdict(self)

    def text(self) -> str:
        """For people."""
        return (
            f"weights {mib(self.weights)}, target KV {mib(self.kv)}, draft KV {mib(self.draft_kv)}, "
            f"verify slots {mib(self.verify)}"
        )

    def shortage(self, available: int) -> str | None:
        """Why this does not fit beside the weights, which are loaded, and what to lower; None if it fits."""
        missing = self.kv + self.draft_kv + self.verify - available
        if missing <= 0:
            return None
        if missing < self.kv:
            lower = f"lower engine.kv_mib to {(self.kv - missing) >> 20}"
        else:
            lower = "lower engine.max_running or policy.k_max"
        return f"memory for {self.text()} is {mib(missing)} more than the {mib(available)} available: {lower}"


def budget(launch: Launch, loaded: LoadedModel) -> Budget:
    """What an engine with these settings needs. `policy.k_max` counts as it is at launch."""
    per_block = loaded.bytes_per_position * launch.block_size
    size = loaded.dtype.itemsize
    verified = launch.max_running * (launch.policy.k_max + 1)
    rows = verified + launch.max_batch_tokens
    return Budget(
        weights=loaded.weight_bytes,
        kv=launch.kv_bytes // per_block * per_block,
        draft_kv=0,
        verify=verified * loaded.vocabulary * (2 * size + _LAW_BYTES) + rows * loaded.row_width * size,
    )


def weights_shortage(model: Path, available: int) -> str | None:
    """Why a model directory cannot even be loaded, or None."""
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    if weights <= available:
        return None
    return (
        f"the weights in {model} are {mib(weights)} and {mib(available)} of memory are available: "
        "take a smaller model"
    )


def available_bytes(device: torch.device, root: Path = Path("/")) -> int:
    """Bytes that can be allocated: on the host also within the limits of the control groups it runs in."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min([_host_bytes(root / "proc/meminfo"), *_group_bytes(root)])


def mib(size: int) -> str:
    """Rounded up: what is there must not read as nothing."""
    return f"{-(-size >> 20)} MiB" if size else "0 MiB"


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
        if at.is_relative_to(mount) and (at / limit).exists():
            most = (at / limit).read_text().strip()
            if most != "max":
                cached = _stat(at / "memory.stat", reclaimable)
                yield max(int(most) - int((at / usage).read_text()) + cached, 0)


def _stat(file: Path, name: str) -> int:
    """One line of a memory.stat: file pages that go when memory is wanted count as used there."""
    lines = file.read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.split()[0] == name), 0)
