"""Drafts that are made for what they show: k = 0 yields no evidence and would otherwise never end, and what is never
chosen shows nothing either.

idle    a round at k = 0 because of low acceptance; the `probe_every`-th of a request since it last drafted
        becomes a probe
stale   how long ago a request drafted last; while the load has drafting off, one request is probed every
        `probe_every` steps, the stalest first, so that each of them has its turn
look    a round of a request that drafts, left to another option (`policies.trials`); these cost more and are less
        urgent, so there is one in `LOOK_EVERY * probe_every` rounds of a class
"""

from collections.abc import Sequence
from typing import Final

from policies.base import Decision, LoadState, Option, Reason, RequestView
from policies.load import LoadLimit
from policies.picker import Picker
from policies.settings import PolicySettings
from policies.trials import SOON, Trials

LOOK_EVERY: Final = 4
"""In units of `probe_every`."""


class _History:
    """When a request drafted last."""

    __slots__ = ("drafted_at", "drafts", "idle")

    def __init__(self, arrivals: int, every: int, drafted_at: int) -> None:
        # Arrivals start at different counts: so probes do not come all in one step, and a class of requests too
        # short to reach `probe_every` rounds still has its share of them.
        self.idle = arrivals % every  # idle rounds since the last draft
        self.drafts = arrivals  # rounds with one
        self.drafted_at = drafted_at  # step of the last draft, or of the arrival


class Probes:
    """Turns some decisions into probes, and remembers who has drafted when."""

    def __init__(self, settings: PolicySettings, picker: Picker) -> None:
        self._picker = picker
        self._trials = Trials()
        self._history: dict[str, _History] = {}
        self._arrivals = 0
        self._step = 0
        self._off_steps = 0  # since the load switched drafting off, or since the last probe thereafter
        self.configure(settings)

    def configure(self, settings: PolicySettings) -> None:
        """Change the budget; who drafted when is kept."""
        self._every = settings.probe_every
        self._k = min(settings.probe_k, settings.k_max)
        self._adapts = settings.kind in ("goodput", "ewma")  # else k is given, and a given k means chains

    def place(self, requests: Sequence[RequestView], decisions: list[Decision], limit: LoadLimit) -> None:
        """Replace in `decisions`, which are those for `requests` in order, what is to be a probe."""
        self._step += 1
        off = limit.state is LoadState.OFF
        self._off_steps = self._off_steps + 1 if off else 0
        if off:
            self._place_stalest(requests, decisions)
        else:
            self._place_idle(requests, decisions, limit.cap)
            self._place_looks(requests, decisions, limit.cap)
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
            if history.idle >= self._every:
                text = f"probe: round {history.idle} without a draft"
                decisions[index] = self._probe(requests[index], cap, text) or decision

    def _place_stalest(self, requests: Sequence[RequestView], decisions: list[Decision]) -> None:
        if self._off_steps < self._every:
            return
        candidates = [index for index, decision in enumerate(decisions) if decision.reason in _OFF_FOR_NOW]
        text = f"probe: step {self._off_steps} with drafting off by load"
        for index in sorted(candidates, key=lambda index: self._of(requests[index]).drafted_at):
            probe = self._probe(requests[index], self._k, text)
            if probe is not None:
                decisions[index] = probe
                self._off_steps = 0
                return

    def _place_looks(self, requests: Sequence[RequestView], decisions: list[Decision], cap: int) -> None:
        for index, (request, decision) in enumerate(zip(requests, decisions, strict=True)):
            if (
                len(request.options) > 1
                and decision.reason in _DRAFTING
                and (self._adapts or decision.k > 0)
                and self._of(request).drafts % SOON == 0
            ):
                decisions[index] = self._look(request, decision, cap) or decision

    def _look(self, request: RequestView, decision: Decision, cap: int) -> Decision | None:
        others = [option for option in self._picker.allowed(request) if option != decision.option]
        if not self._adapts:
            others = [option for option in others if option.width == 1]
        option = self._trials.due(request.traffic_class, others, LOOK_EVERY * self._every)
        if option is None:
            return None
        wanted = self._picker.best_k(request, option) if self._adapts else decision.k
        k = min(max(self._k, wanted), self._picker.most(option), self._room(request, cap))
        if k == 0:
            return None
        self._trials.looked(request.traffic_class)
        return self._by(option, k, f"probe: {option.proposer} was not tried for long")

    def _note_drafts(self, requests: Sequence[RequestView], decisions: list[Decision]) -> None:
        for request, decision in zip(requests, decisions, strict=True):
            history = self._of(request)
            if decision.option is not None:
                history.idle = 0
                history.drafts += 1
                history.drafted_at = self._step
                self._trials.drafted(request.traffic_class, decision.option)

    def _probe(self, request: RequestView, cap: int, text: str) -> Decision | None:
        """A probe of this request, by whoever was tried least lately; None where there is no room or nobody."""
        option = self._trials.stalest(request.traffic_class, self._picker.allowed(request))
        k = 0 if option is None else min(self._k, self._picker.most(option), self._room(request, cap))
        return self._by(option, k, text) if option is not None and k > 0 else None

    def _by(self, option: Option, k: int, text: str) -> Decision:
        return Decision(k, Reason.PROBE, text, option, self._picker.nodes(option, k))

    @staticmethod
    def _room(request: RequestView, cap: int) -> int:
        room = min(cap, request.remaining_tokens - 1)
        return room if request.fixed_k is None else min(room, request.fixed_k)

    def _of(self, request: RequestView) -> _History:
        history = self._history.get(request.request)
        if history is None:
            history = _History(self._arrivals, self._every, self._step)
            self._history[request.request] = history
            self._arrivals += 1
        return history


_OFF_FOR_NOW: Final = frozenset({Reason.LOAD_OFF, Reason.LOW_ACCEPTANCE})
_DRAFTING: Final = frozenset(
    {Reason.ACCEPTANCE, Reason.CLASS_PRIOR, Reason.STATIC, Reason.LOAD_CAP, Reason.NO_ROOM}
)
