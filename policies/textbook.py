"""Controllers that choose a request's k from that request alone, before load and room are looked at."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final, Protocol

from policies.acceptance import AcceptanceEstimates
from policies.base import Decision, Reason, RequestView
from policies.plan import BestK
from policies.settings import PolicySettings


class Chooser(Protocol):
    """Wants a k for a request."""

    def wanted(self, request: RequestView) -> Decision:
        """The k that would be best were the request alone. Mutates nothing."""


class Ewma:
    """The best k by the formulas of `policies.plan` at the request's estimated acceptance."""

    def __init__(self, settings: PolicySettings, estimates: AcceptanceEstimates) -> None:
        self._estimates = estimates
        self._best_k = BestK(settings.token_cost, settings.k_max)

    def wanted(self, request: RequestView) -> Decision:
        """The best k; 0 where a draft costs more than it brings."""
        acceptance, own = self._estimates.estimate(request.request, request.traffic_class)
        return _decision(self._best_k(acceptance), round(acceptance * 100), own)


@cache  # there are few, and writing their text for every request in every step would be felt
def _decision(k: int, percent: int, own: bool) -> Decision:
    estimate = f"{'' if own else 'class '}acceptance {percent / 100:.2f}"
    if k == 0:
        return Decision(0, Reason.LOW_ACCEPTANCE, f"{estimate}: a draft costs more than it brings")
    return Decision(k, Reason.ACCEPTANCE if own else Reason.CLASS_PRIOR, f"{estimate}: k = {k} is best")


class Static:
    """The same k for every request."""

    def __init__(self, settings: PolicySettings) -> None:
        k = min(settings.static_k, settings.k_max)
        self._decision = Decision(k, Reason.STATIC, f"static: k = {k} by configuration")

    def wanted(self, request: RequestView) -> Decision:  # noqa: ARG002
        """The configured k."""
        return self._decision


class Off:
    """No draft for any request."""

    def __init__(self, why: str) -> None:
        self._decision = Decision(0, Reason.DISABLED, f"disabled: {why} by configuration")

    def wanted(self, request: RequestView) -> Decision:  # noqa: ARG002
        """Always 0."""
        return self._decision


_KINDS: Final[Mapping[str, Callable[[PolicySettings, AcceptanceEstimates], Chooser]]] = {
    "ewma": Ewma,
    "static": lambda settings, _: Static(settings),
    "off": lambda *_: Off('kind = "off"'),
}


def chooser(settings: PolicySettings, estimates: AcceptanceEstimates) -> Chooser:
    """The controller that the settings name. Raises ValueError for a kind that does not exist."""
    if settings.kind not in _KINDS:
        raise ValueError(f'there is no policy kind "{settings.kind}": choose one of {", ".join(_KINDS)}')
    if settings.k_max == 0:
        return Off("k_max = 0")
    return _KINDS[settings.kind](settings, estimates)
