"""Policies as the simulation asks them: arrays in, lengths out.

The adaptive one is the daemon's own controller, asked and told through the same values as by the engine.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.base import Decision, LoadView, Observation, Option, RequestView, StepSeen
from policies.controller import Controller
from policies.cost import StepCosts
from policies.load import UNCAPPED, LoadPolicy
from policies.settings import LoadSettings, PolicySettings

_UNKNOWN: Final = (
    1 << 20
)  # tokens that a text may still get, as far as a policy knows: texts end where they do


class Batch(NamedTuple):
    """The requests that decode in a step."""

    requests: NDArray[np.int64]  # [b] indices into the trace
    context: NDArray[np.int64]  # [b] tokens of prompt and text


class Contender(Protocol):
    """A policy in the simulation."""

    name: str
    reasons: Counter[str]

    @property
    def idle(self) -> bool:
        """Whether it never drafts, whatever it sees: its rounds can be jumped over."""

    def lengths(self, load: LoadView, batch: Batch) -> NDArray[np.int64]:
        """[b]: tokens to draft for each."""

    def observe(self, examined: NDArray[np.int64], accepted: NDArray[np.int64], step: StepSeen) -> None:
        """[b] each, of the lengths that were last asked for."""

    def forget(self, requests: Sequence[int]) -> None:
        """These have ended."""


class _Deaf:
    """Learns nothing, and says nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reasons: Counter[str] = Counter()

    def observe(self, examined: NDArray[np.int64], accepted: NDArray[np.int64], step: StepSeen) -> None:
        pass

    def forget(self, requests: Sequence[int]) -> None:
        pass


class Fixed(_Deaf):
    """One length for all; 0 is plain decoding."""

    def __init__(self, name: str, k: int, max_running: int) -> None:
        super().__init__(name)
        self.idle = k == 0
        self._lengths = np.full(max_running, k)

    def lengths(self, load: LoadView, batch: Batch) -> NDArray[np.int64]:  # noqa: ARG002
        """The same always."""
        return self._lengths[: len(batch.requests)]


class Table(_Deaf):
    """A length by the number of running requests, as today's engines have it."""

    idle = False

    def __init__(self, name: str, settings: LoadSettings, k_max: int) -> None:
        super().__init__(name)
        self._policy = LoadPolicy(PolicySettings(k_max=k_max, load=settings))

    def lengths(self, load: LoadView, batch: Batch) -> NDArray[np.int64]:
        """What the load allows is what all get."""
        return np.full(len(batch.requests), self._policy.step(load).cap)


class Adaptive:
    """The controller, without a cap by load."""

    idle = False

    def __init__(
        self,
        name: str,
        settings: PolicySettings,
        costs: StepCosts,
        option: Option,
        class_of: Sequence[str],
    ) -> None:
        """costs: where it starts from. option: what is offered for every text. class_of: of each request."""
        self.name = name
        self.reasons: Counter[str] = Counter()
        self._controller = Controller(replace(settings, load=UNCAPPED), costs)
        self._options: tuple[Option, ...] = (option,)
        self._class_of = class_of
        self._views: list[RequestView] = []
        self._decisions: list[Decision] = []

    def lengths(self, load: LoadView, batch: Batch) -> NDArray[np.int64]:
        """Each its own."""
        pairs = zip(batch.requests.tolist(), batch.context.tolist(), strict=True)
        offered = self._options if self._controller.wants_options else ()
        self._views = [self._view(request, context, offered) for request, context in pairs]
        self._decisions = self._controller.decide(load, self._views)
        self.reasons.update(decision.reason.value for decision in self._decisions)
        return np.array([decision.k for decision in self._decisions], dtype=np.int64)

    def observe(self, examined: NDArray[np.int64], accepted: NDArray[np.int64], step: StepSeen) -> None:
        """Tell the controller what it would be told by the engine."""
        seen = zip(self._views, self._decisions, examined.tolist(), accepted.tolist(), strict=True)
        self._controller.observe([_observation(*each) for each in seen if each[1].option is not None], step)

    def forget(self, requests: Sequence[int]) -> None:
        """Their state is dropped."""
        for request in requests:
            self._controller.forget(str(request))

    def _view(self, request: int, context: int, offered: tuple[Option, ...]) -> RequestView:
        return RequestView(
            str(request), self._class_of[request], "", _UNKNOWN, context, True, None, 0, offered
        )


def _observation(view: RequestView, decision: Decision, examined: int, accepted: int) -> Observation:
    assert decision.option is not None
    proposer, _, grade, width, _ = decision.option
    return Observation(
        view.request, view.traffic_class, proposer, decision.k, examined, accepted, grade, width
    )
