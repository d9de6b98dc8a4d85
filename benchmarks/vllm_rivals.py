"""The scheduler of `benchmarks.vllm_loop`, which can be left to vLLM and handed back while requests run."""

from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler

from engine.vllm.scheduler import SpecdScheduler


class Switched(SpecdScheduler):
    """vLLM's own with one draft length, or ours."""

    steered = True

    def hand_to(self, k: int | None) -> None:
        """None: to our policy; else to vLLM, with this length for every batch size, as its own table has it."""
        self.steered = k is None
        k = self.num_spec_tokens if k is None else k
        self.dynamic_sd_lookup = [k] * (self.max_num_running_reqs + 1)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """See vLLM."""
        return (SpecdScheduler if self.steered else Scheduler).schedule(self, throttle_prefills)

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        (SpecdScheduler if self.steered else Scheduler)._update_after_schedule(self, scheduler_output)  # noqa: SLF001

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """See vLLM."""
        owner = SpecdScheduler if self.steered else Scheduler
        return owner.update_from_output(self, scheduler_output, model_runner_output)
