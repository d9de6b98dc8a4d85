"""Short drafts where none is wanted, for k = 0 yields no evidence and would otherwise never end.

idle    a round at k = 0 because of low acceptance; the `probe_every`-th of a request since it last drafted
        becomes a probe
stale   how long ago a request drafted last; while the load has drafting off, one request is probed every
        `probe_every` steps, the stalest first, so that each of them has its turn
"""

from collections.abc import Sequence

from policies.base import Decision, LoadState, Reason, RequestView
from policies.load import LoadLimit
from policies.settings import PolicySettings


class _History:
    """When a request drafted last."""

    __slots__ = ("drafted_at", "idle")

    def __init__(self, idle: int, drafted_at: int) -> None:
        self.idle = idle  # idle rounds since the last draft
        self.drafted_at = drafted_at  # step of the last draft, or of the arrival


class Probes:
    """Turns some decisions into probes, and remembers who has drafted when."""

    def __init__(self, settings: PolicySettings) -> None:
        self._history: dict[str, _History] = {}
        self._arrivals = 0
        self._step = 0
        self._off_steps = 0  # since the load switched drafting off, or since the last probe thereafter
        self.configure(settings)

    def configure(self, settings: PolicySettings) -> None:
        """Change the budget; who drafted when is kept."""
        self._every = settings.probe_every
        self._k = min(settings.probe_k, settings.k_max)

    def place(self, requests: Sequence[RequestView], decisions: list[Decision], limit: LoadLimit) -> None:
        """Replace in `decisions`, which are those for `requests` in order, what is to be a probe."""
        self._step += 1
        off = limit.state is LoadState.OFF
        self._off_steps = self._off_steps + 1 if off else 0
        if off:
            self._place_stalest(requests, decisions)
        else:
            self._place_idle(requests, decisions, limit.cap)
        self._note_drafts(requests, decisions)

    def forget(self, request: str) -> None:
        """The request has ended."""
        self._history.pop(request, None)

    def _place_idle(self, requests: Sequence[RequestView], decisions: list[Decision], cap: int) -> None:
        for index, decision in enumerate(decisions):
            if decision.reason is not Reason.LOW_ACCEPTANCE:
                continue
            history = self._of(requests[index])
            history.idle += 1
            k = min(self._useful(requests[index]), cap)
            if k > 0 and history.idle >= self._every:
                text = f"probe: round {history.idle} without a draft"
                decisions[index] = Decision(k, Reason.PROBE, text, requests[index].options[0])

    def _place_stalest(self, requests: Sequence[RequestView], decisions: list[Decision]) -> None:
        if self._off_steps < self._every:
            return
        candidates = [
            index
            for index, decision in enumerate(decisions)
            if decision.reason in _OFF_FOR_NOW and self._useful(requests[index]) > 0
        ]
        if candidates:
            index = min(candidates, key=lambda index: self._of(requests[index]).drafted_at)
            text = f"probe: step {self._off_steps} with drafting off by load"
            k, option = self._useful(requests[index]), requests[index].options[0]
            decisions[index] = Decision(k, Reason.PROBE, text, option)
            self._off_steps = 0

    def _note_drafts(self, requests: Sequence[RequestView], decisions: list[Decision]) -> None:
        for request, decision in zip(requests, decisions, strict=True):
            history = self._of(request)
            if decision.k > 0 and decision.reason is not Reason.FORCED:
                history.idle = 0
                history.drafted_at = self._step

    def _useful(self, request: RequestView) -> int:
        """The length of a probe of this request."""
        if not request.options:
            return 0
        k = min(self._k, request.options[0].k, request.remaining_tokens - 1)
        return k if request.fixed_k is None else min(k, request.fixed_k)

    def _of(self, request: RequestView) -> _History:
        history = self._history.get(request.request)
        if history is None:
            # Arrivals start at different counts: so probes do not come all in one step, and a class of
            # requests too short to reach `probe_every` rounds still has its share of them.
            history = _History(self._arrivals % self._every, self._step)
            self._history[request.request] = history
            self._arrivals += 1
        return history


_OFF_FOR_NOW = frozenset({Reason.LOAD_OFF, Reason.LOW_ACCEPTANCE})
