"""A scheduler that behaves as vLLM's does, as far as ours looks at it; and texts that are drafted for.

A text is copied from its prompt with a chance of `copies` a token: so often is a lookup right, each time anew.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from engine.api import Configure, StepReport
from engine.vllm.pilot import Pilot
from engine.vllm.steering import Drafter, Steering
from policies.cost import StepCosts
from policies.settings import PolicySettings

RIGHT, WRONG = 1, 2


@dataclass
class FakeRequest:
    """What is read of a vLLM request, and how its drafts fare."""

    request_id: str
    copies: float
    max_tokens: int = 1 << 20
    num_prompt_tokens: int = 32
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    placeholders: int = 0  # of tokens that steps under way are to say
    spec_token_ids: list[int] = field(default_factory=list)
    sampling_params: Any = field(default_factory=lambda: SimpleNamespace(extra_args=None))
    is_prefill_chunk: bool = True

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


class FakeLink:
    """Keeps what is reported, and hands over orders."""

    is_wanted = True

    def __init__(self) -> None:
        self.reports: list[StepReport] = []
        self.orders: list[Configure] = []

    def send(self, report: StepReport) -> None:
        self.reports.append(report)

    def received(self) -> list[Configure]:
        orders, self.orders = self.orders, []
        return orders

    def close(self) -> None:
        self.orders = []


class FakeScheduler:
    """Synchronous: a draft is made at the end of each step, as far as step k says, and verified in the next."""

    max_num_scheduled_tokens = 512
    asynchronous = False

    def __init__(
        self,
        requests: Iterable[FakeRequest],
        *,
        method: str = "ngram",
        most: int = 8,
        lengths: Sequence[int] | None = None,
        settings: PolicySettings | None = None,
        costs: StepCosts | None = None,
        seed: int = 0,
    ) -> None:
        self.requests = {request.request_id: request for request in requests}
        self.running = list(self.requests.values())
        self.waiting: list[FakeRequest] = []
        self.clock = 0.0
        self.step_ks: list[int] = []
        self._truth = costs or StepCosts(steps=((1, 0.010), (8, 0.018), (32, 0.045)))
        self._rng = np.random.default_rng(seed)
        self._method = method
        self._gone: set[str] = set()
        drafter = Drafter(method, most, tuple(lengths or range(most + 1)), self.asynchronous)
        self.link = FakeLink()
        steering = Steering.of(drafter, settings or PolicySettings(), longest=1 << 30)
        self.pilot = Pilot(steering, self.link, kv_blocks=100, clock=lambda: self.clock)  # type: ignore[arg-type]

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    def get_kv_cache_usage(self) -> float:
        return 0.25

    def step(self) -> StepReport:
        """Schedule, compute, take in, draft: as vLLM's core does."""
        output, requests = self._launch(), list(self.running)
        drafts = output.scheduled_spec_decode_tokens
        self._land(output, requests, [drafts.get(one.request_id, []) for one in requests])
        for request in self.running:
            request.spec_token_ids = self._guess(request, self.step_ks[-1])
        return self.link.reports[-1]

    def _launch(self) -> Any:
        self.pilot.begin(self)
        output = self._schedule()
        k = output.num_spec_tokens_to_schedule = self.pilot.step_k(self, output)
        self.step_ks.append(k)
        for request in self.running:
            request.num_computed_tokens += output.num_scheduled_tokens[request.request_id]
            request.is_prefill_chunk = False
        self.pilot.scheduled(output)
        return output

    def _land(self, output: Any, requests: list[FakeRequest], drafts: list[list[int]]) -> None:
        """drafts: that are verified."""
        said = [self._say(draft) for draft in drafts]
        places = {request.request_id: place for place, request in enumerate(requests)}
        self.clock += self._seconds(output, output.num_spec_tokens_to_schedule)
        flight = self.pilot.landed(output, SimpleNamespace(sampled_token_ids=said, req_id_to_index=places))
        self.pilot.observed(self, flight, self._take_in(output, requests, said))

    def _schedule(self) -> Any:
        rows, drafts = {}, {}
        for request in self.running:
            known = request.num_tokens + request.placeholders + len(request.spec_token_ids)
            rows[request.request_id] = known - request.num_computed_tokens
            if request.spec_token_ids:
                drafts[request.request_id] = request.spec_token_ids
            request.spec_token_ids = []
        gone, self._gone = self._gone, set()
        return SimpleNamespace(
            num_scheduled_tokens=rows,
            total_num_scheduled_tokens=sum(rows.values()),
            scheduled_spec_decode_tokens=drafts,
            finished_req_ids=gone,
            num_invalid_spec_tokens=None,
        )

    def _seconds(self, output: Any, k: int) -> float:
        drafting = 0.0 if self._method == "ngram" else 0.002 * k
        seconds = self._truth.step(output.total_num_scheduled_tokens) + drafting
        return float(seconds * self._rng.lognormal(0.0, 0.03))

    @staticmethod
    def _say(draft: list[int]) -> list[int]:
        right = next((place for place, token in enumerate(draft) if token != RIGHT), len(draft))
        return [RIGHT] * (right + 1)

    def _guess(self, request: FakeRequest, k: int) -> list[int]:
        return [RIGHT if self._rng.random() < request.copies else WRONG for _ in range(k)]

    def _take_in(self, output: Any, requests: list[FakeRequest], said: list[list[int]]) -> list[Any]:
        """Cuts what is beyond the end, as vLLM does, in place; leaves out who has ended."""
        answers, ended = [], []
        for request, tokens in zip(requests, said, strict=True):
            if request.request_id not in self.requests:
                continue
            verified = output.scheduled_spec_decode_tokens.get(request.request_id, [])
            request.num_computed_tokens -= len(verified) - (len(tokens) - 1)
            del tokens[request.max_tokens - request.num_output_tokens :]
            request.num_output_tokens += len(tokens)
            finish = "length" if request.num_output_tokens == request.max_tokens else None
            answers.append(SimpleNamespace(request_id=request.request_id, finish_reason=finish))
            if finish:
                ended.append(request)
        for request in ended:
            self.end(request)
        return answers

    def end(self, request: FakeRequest) -> None:
        """It is no longer there; the next step says so."""
        self.running.remove(request)
        del self.requests[request.request_id]
        self._gone.add(request.request_id)


class FakeAsyncScheduler(FakeScheduler):
    """Schedules a step before the one before it is computed, and so before the drafts are made that it verifies: they
    are placeholders then.
    """

    asynchronous = True

    def __init__(self, requests: Iterable[FakeRequest], **given: Any) -> None:
        super().__init__(requests, **given)
        self._under_way: deque[tuple[Any, list[FakeRequest]]] = deque()
        self._made: dict[str, list[int]] = {}

    def step(self) -> StepReport:
        """Schedule until two are under way, and have the first one computed and taken in."""
        while len(self._under_way) < 2:
            self._under_way.append((self._launch(), list(self.running)))
        output, requests = self._under_way.popleft()
        lengths = [len(output.scheduled_spec_decode_tokens.get(one.request_id, [])) for one in requests]
        made = [self._made.get(one.request_id, [])[:k] for one, k in zip(requests, lengths, strict=True)]
        self._land(output, requests, made)
        for request in requests:
            self._made[request.request_id] = self._guess(request, output.num_spec_tokens_to_schedule)
        return self.link.reports[-1]

    def _launch(self) -> Any:
        output = super()._launch()
        placeholders = [-1] * output.num_spec_tokens_to_schedule
        for request in self.running:
            drafted = len(output.scheduled_spec_decode_tokens.get(request.request_id, []))
            request.placeholders += 1 + drafted
            request.spec_token_ids = placeholders
        return output

    def _take_in(self, output: Any, requests: list[FakeRequest], said: list[list[int]]) -> list[Any]:
        for request in requests:
            request.placeholders -= 1 + len(output.scheduled_spec_decode_tokens.get(request.request_id, []))
        return super()._take_in(output, requests, said)
