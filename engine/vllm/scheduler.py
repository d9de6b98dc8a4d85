"""vLLM's scheduler, with the draft lengths of our policy: `--scheduler-cls engine.vllm.scheduler.SpecdScheduler`, or
`SpecdAsyncScheduler` where vLLM schedules asynchronously. All that is not vLLM's own is in `engine.vllm.pilot`.
"""

import logging
from typing import Any, Final

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from engine.vllm.configured import drafter_of, hello_of, policy_of, socket_of, warning_of
from engine.vllm.link import Link
from engine.vllm.pilot import Pilot
from engine.vllm.steering import Steering
from engine.vllm.versions import require

_log: Final = logging.getLogger("vllm.specd")  # vLLM shows what is below its own name


class _Steered:
    """What is added to a scheduler class of vLLM's. Raises UnknownVersionError for one that is not known."""

    theirs: type
    """The class of vLLM's."""
    pilot: Pilot
    dynamic_sd_lookup: list[int] | None
    num_spec_tokens: int
    max_num_running_reqs: int

    def __init__(self, *arguments: Any, **named: Any) -> None:
        require(self.theirs, SchedulerOutput, ModelRunnerOutput, Request)
        super().__init__(*arguments, **named)
        self.pilot = _pilot_of(self)
        if self.dynamic_sd_lookup is None and len(self.pilot.steering.drafter.lengths) > 1:
            # Without a table vLLM takes all drafts for equally long, and fills up those of newcomers that have none.
            self.dynamic_sd_lookup = [self.num_spec_tokens] * (self.max_num_running_reqs + 1)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """See vLLM."""
        self.pilot.begin(self)
        output = super().schedule(throttle_prefills)  # type: ignore[misc]  # of vLLM's class, beside this one
        self.pilot.scheduled(output)
        return output

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        scheduler_output.num_spec_tokens_to_schedule = self.pilot.step_k(self, scheduler_output)
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """See vLLM."""
        flight = self.pilot.landed(scheduler_output, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        self.pilot.observed(self, flight, [one for each in outputs.values() for one in each.outputs])
        return outputs

    def shutdown(self) -> None:
        """See vLLM."""
        self.pilot.close()
        super().shutdown()  # type: ignore[misc]


class SpecdScheduler(_Steered, Scheduler):  # type: ignore[misc]  # vLLM is not there where types are checked
    """For synchronous scheduling, which vLLM always has on CPU."""

    theirs = Scheduler


class SpecdAsyncScheduler(_Steered, AsyncScheduler):  # type: ignore[misc]
    """For asynchronous scheduling: drafts are made before the scheduler can see them."""

    theirs = AsyncScheduler


def _pilot_of(scheduler: Any) -> Pilot:
    config = scheduler.vllm_config
    drafter = drafter_of(config, scheduler.num_spec_tokens, scheduler.dynamic_sd_lookup)
    if (warning := warning_of(config, drafter)) is not None:
        _log.warning("%s", warning)
    blocks = int(scheduler.kv_cache_config.num_blocks)
    link = Link(socket_of(config), hello_of(config, drafter, blocks))
    steering = Steering.of(drafter, policy_of(config), longest=int(scheduler.max_model_len))
    return Pilot(steering, link, kv_blocks=blocks)
