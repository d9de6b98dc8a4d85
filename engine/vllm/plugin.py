"""For those who keep `vllm serve`: vLLM calls `register` in each of its processes, by the entry point
`vllm.general_plugins`. To have specd installed changes nothing; to set `SPECD_VLLM_SOCKET` or `SPECD_VLLM_POLICY` makes
our scheduler the one that is taken where none is named by --scheduler-cls.
"""

import os
from typing import Any

from engine.vllm.configured import POLICY_VARIABLE
from engine.vllm.link import SOCKET_VARIABLE


def register() -> None:
    """Have vLLM take our scheduler, if that is asked for. May be called again and again."""
    if not (os.environ.get(SOCKET_VARIABLE) or os.environ.get(POLICY_VARIABLE)):
        return
    from vllm.config.scheduler import SchedulerConfig  # noqa: PLC0415  only vLLM's processes come here

    if SchedulerConfig.get_scheduler_cls.__module__ != __name__:
        SchedulerConfig.get_scheduler_cls = chosen(SchedulerConfig.get_scheduler_cls)


def chosen(theirs: Any) -> Any:
    """vLLM's `SchedulerConfig.get_scheduler_cls`, with ours where none is named."""

    def get_scheduler_cls(self: Any) -> type:
        if self.scheduler_cls is not None:
            named: type = theirs(self)
            return named
        from engine.vllm.scheduler import SpecdAsyncScheduler, SpecdScheduler  # noqa: PLC0415  they import vLLM

        return SpecdAsyncScheduler if self.async_scheduling else SpecdScheduler

    return get_scheduler_cls
