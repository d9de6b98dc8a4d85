"""One step after another of vLLM's scheduler: what is asked of the policy, learned from the step, and reported.

flight    a step between its scheduling and its output; where vLLM schedules asynchronously, several are under way

    begin ── vLLM schedules, step_k ── scheduled ── vLLM computes ── landed ── vLLM takes the output in ── observed
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from engine.api import (
    Configure,
    FinishReason,
    KVUsage,
    Output,
    PhaseSeconds,
    StepReport,
)
from engine.stopwatch import now
from engine.vllm.link import Link
from engine.vllm.steering import Plan, Shown, Steering
from policies.base import Drafting, LoadView, StepSeen

_TELLS_ERRORS: Final = 64  # steps between two words on how well costs are foreseen
_FINISHES: Final[Mapping[str, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "abort": "cancelled",
    "repetition": "stop",
}

P = ParamSpec("P")
R = TypeVar("R")


def _counted(method: Callable[Concatenate["Pilot", P], R]) -> Callable[Concatenate["Pilot", P], R]:
    """Adds to `Pilot.spent`."""

    def counted(self: "Pilot", /, *args: P.args, **kwargs: P.kwargs) -> R:
        began = now()
        try:
            return method(self, *args, **kwargs)
        finally:
            self.spent += now() - began

    return counted


@dataclass(slots=True)
class Flight:
    """A step that vLLM was told to take."""

    output: Any
    plans: list[Plan]  # of those that decode in it
    drafting: tuple[Drafting, ...]
    before: tuple[Drafting, ...] | None  # see StepSeen
    prefill_rows: int
    context: int
    decision: int  # serial number of that behind the plans
    began: float
    scheduled: float
    landed: float = 0.0
    shown: list[Shown] = field(default_factory=list)
    said: list[Sequence[int]] = field(default_factory=list)
    """Tokens of each that was shown. vLLM shortens them where a text ends."""


class Pilot:
    """Beside one scheduler of vLLM's."""

    def __init__(
        self, steering: Steering, link: Link, *, kv_blocks: int, clock: Callable[[], float] = now
    ) -> None:
        self.steering = steering
        steering.tells = link.is_wanted
        self.spent = 0.0
        """Seconds in here, since the start."""
        self.steps = 0
        self._link = link
        self._kv_blocks = kv_blocks
        self._clock = clock
        self._plans: list[Plan] = []
        self._began = 0.0
        self._context = 0
        self._decision = 0
        self._drafted_for = 0
        self._drafting: tuple[Drafting, ...] = ()  # of the step that was scheduled last
        self._flights: deque[Flight] = deque()
        self._ended = 0.0  # when the last output was taken in
        self._busy = False  # whether something ran on then
        self._answers: list[Output] = []

    @_counted
    def begin(self, scheduler: Any) -> None:
        """A step is to be scheduled: take orders, and cut drafts to what is worth verifying."""
        self._began = self._clock()
        self._take_orders()
        decoding = [request for request in scheduler.running if not request.is_prefill_chunk]
        self._context = sum([request.num_tokens for request in decoding])
        self._plans = self.steering.cut(decoding, self._load(scheduler, len(decoding)))
        self._decision = self.steering.decisions

    @_counted
    def step_k(self, scheduler: Any, output: Any) -> int:
        """How far to draft in the step that was scheduled."""
        requests, scheduled = scheduler.requests, output.num_scheduled_tokens
        decoding = [
            request
            for key, rows in scheduled.items()
            if (request := requests[key]).num_computed_tokens + rows >= request.num_tokens
        ]
        for request in decoding:
            self.steering.text(request)
        self._drafted_for = len(decoding)
        return self.steering.draft(decoding, self._load(scheduler, len(decoding)))

    @_counted
    def scheduled(self, output: Any) -> None:
        """vLLM has scheduled a step, and may have left some of those waiting that were to decode."""
        rows, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
        plans = [
            plan.verifying(len(drafts.get(plan.text.key, ())))
            for plan in self._plans
            if plan.text.key in rows
        ]
        decodes = sum([rows[plan.text.key] for plan in plans])
        before = self._drafting if self.steering.is_ahead else None
        self._drafting = self.steering.drafting(plans, output.num_spec_tokens_to_schedule, self._drafted_for)
        flight = Flight(
            output=output,
            plans=plans,
            drafting=self._drafting,
            before=before,
            prefill_rows=output.total_num_scheduled_tokens - decodes,
            context=self._context,
            decision=self._decision,
            began=self._began,
            scheduled=self._clock(),
        )
        self._flights.append(flight)
        for key in output.finished_req_ids:
            self._end(key, "cancelled")  # if it ended by itself, that is known already

    @_counted
    def landed(self, output: Any, result: Any) -> Flight | None:
        """What the target said in a step, before vLLM takes it in. None for a step that was not seen to begin."""
        while self._flights:
            flight = self._flights.popleft()
            if flight.output is output:
                break
        else:
            return None
        flight.landed = self._clock()
        said, places = result.sampled_token_ids, result.req_id_to_index
        unmakeable = output.num_invalid_spec_tokens or {}
        for plan in flight.plans if said else ():
            key = plan.text.key
            if not self.steering.knows(plan.text):
                continue  # it ended while this step was under way, and vLLM leaves out what was said for it
            if (place := places.get(key)) is not None and said[place]:
                flight.said.append(said[place])
                flight.shown.append(self.steering.show(plan, said[place], unmakeable.get(key, 0)))
        return flight

    @_counted
    def observed(self, scheduler: Any, flight: Flight | None, answers: Iterable[Any]) -> None:
        """vLLM has taken the output in: learn, and report. answers: vLLM's, for its clients."""
        if flight is None:
            return
        self._finish(answers)
        ended = self._clock()
        seconds = ended - self._since(flight, ended)
        self._ended, self._busy = ended, bool(scheduler.running)
        if not flight.output.total_num_scheduled_tokens:
            return
        self.steps += 1
        seen = self._seen(flight, seconds, ended)
        self.steering.observe(flight.shown, seen)
        if self._link.is_wanted:
            self._link.send(self._report(scheduler, flight, seen))
            self._answers = []

    def _since(self, flight: Flight, ended: float) -> float:
        """When a step began, as far as its cost goes: what vLLM does between two steps belongs to the second one, up to
        as long as that takes itself. What is longer is a standstill.
        """
        if not self._busy:
            return flight.began
        return max(self._ended, flight.began - (ended - flight.began))

    def close(self) -> None:
        """vLLM ends."""
        self._link.close()

    def _take_orders(self) -> None:
        for message in self._link.received():
            if isinstance(message, Configure):
                self.steering.configure(message.policy)

    def _load(self, scheduler: Any, decoding: int) -> LoadView:
        running, waiting = scheduler.get_request_counts()
        return LoadView(
            running=running,
            waiting=waiting,
            kv_free=1.0 - scheduler.get_kv_cache_usage(),
            now=self._clock(),
            context=self._context,
            prefill_rows=_prompt_rows(scheduler) if waiting or running > decoding else 0,
        )

    def _seen(self, flight: Flight, seconds: float, ended: float) -> StepSeen:
        return StepSeen(
            now=ended,
            seconds=seconds,
            rows=flight.output.total_num_scheduled_tokens,
            prefill_rows=flight.prefill_rows,
            padding=0,
            sequences=len(flight.plans),
            context=flight.context,
            committed=sum(map(len, flight.said)),
            drafting=flight.drafting,
            behind=self.steering.decisions - flight.decision,
            before=flight.before,
        )

    def _finish(self, answers: Iterable[Any]) -> None:
        for answer in answers:
            if answer.finish_reason is not None:
                self._end(answer.request_id, _FINISHES.get(str(answer.finish_reason), "error"))

    def _end(self, key: str, finish: FinishReason) -> None:
        """A request has ended: say what came of its drafts, with the next report."""
        text = self.steering.forget(key)
        if text is not None and not text.hosted and self._link.is_wanted:
            self._answers.append(text.ended(finish))

    def _report(self, scheduler: Any, flight: Flight, seen: StepSeen) -> StepReport:
        used = round(scheduler.get_kv_cache_usage() * self._kv_blocks)
        running, waiting = scheduler.get_request_counts()
        phases = PhaseSeconds(
            schedule=flight.scheduled - flight.began,
            draft=0.0,
            verify=flight.landed - flight.scheduled,
            commit=seen.now - flight.landed,
        )
        tells = self.steps % _TELLS_ERRORS == 0
        return StepReport(
            step=self.steps,
            phases=phases,
            rows=seen.rows,
            prefill_rows=seen.prefill_rows,
            running=running,
            waiting=waiting,
            committed=seen.committed,
            kv=KVUsage(free=self._kv_blocks - used, used=used),
            load_state=self.steering.policy.load_state,
            rounds=[shown.round() for shown in flight.shown],
            outputs=self._answers,
            cost_errors=self.steering.policy.cost_errors() if tells else (),
        )


def _prompt_rows(scheduler: Any) -> int:
    """Of prompts that are likely to be in the next step: as many as there is room for."""
    room, rows = int(scheduler.max_num_scheduled_tokens), 0
    unread = [request for request in scheduler.running if request.is_prefill_chunk]
    for request in (*unread, *scheduler.waiting):
        rows += max(request.num_tokens - request.num_computed_tokens, 1)
        if rows >= room:
            return room
    return rows
