"""From the host to where the model runs, without waiting for it.

A copy to a GPU from ordinary memory waits until everything before it has run. From pinned memory it takes its turn in
the queue. Reading something back always waits: a step does that as seldom as it can.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def send(
    values: Sequence[Any] | NDArray[Any] | Tensor, device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """The values on the device, in the order of the device's work; dtype None takes theirs. On a CPU it may be they."""
    host = torch.as_tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def upload(columns: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, ...]:
    """Each column as int64 on the device: views of one tensor, so one copy."""
    sent = send(list(chain(*columns)), device, torch.int64)
    return torch.split(sent, [len(column) for column in columns])
