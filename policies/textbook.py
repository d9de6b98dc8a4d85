"""Controllers that choose for a request from that request alone; `most` is what load and room leave of k."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, Protocol

from policies.acceptance import Rates
from policies.base import Decision, Reason, RequestView
from policies.picker import Picker
from policies.settings import PolicySettings

_TOLD: Final = 3  # options that a decision's text names

NO_OFFER: Final = Decision(0, Reason.NO_OFFER, "no proposer has a guess")


class Chooser(Protocol):
    """Wants a draft for a request."""

    def wanted(self, request: RequestView, most: int) -> Decision:
        """The draft of at most so many levels that would be best were the request alone. Mutates nothing."""


class Ewma:
    """What brings most by `policies.picker`, k = 0 included."""

    def __init__(self, picker: Picker) -> None:
        self._picker = picker

    def wanted(self, request: RequestView, most: int) -> Decision:
        """The best option at its best k; 0 where every draft costs more than it brings."""
        picks = self._picker.best(request, most)
        if not picks:
            return NO_OFFER
        _, k, _, option, gain, rates = picks[0]
        if k == 0:
            return _not_worth(option.proposer, rates)
        text = _brings(option.proposer, rates, k, gain)
        for _, _, _, other, less, _ in picks[1:_TOLD]:
            text += _other(other.proposer, less)
        reason = Reason.ACCEPTANCE if rates.own else Reason.CLASS_PRIOR
        return Decision(k, reason, text, option, self._picker.nodes(option, k))


# There are few of these, and writing them for every request in every step would be felt.


@lru_cache(maxsize=1 << 14)
def _not_worth(proposer: str, rates: Rates) -> Decision:
    text = f"{_estimate(proposer, rates)}: a draft costs more than it brings"
    return Decision(0, Reason.LOW_ACCEPTANCE, text)


@lru_cache(maxsize=1 << 14)
def _brings(proposer: str, rates: Rates, k: int, gain: float) -> str:
    then = f", then {rates.later / 100:.2f}" if rates.later != rates.first else ""
    return f"{_estimate(proposer, rates)}{then}: k = {k} brings {gain:.2f}"


@lru_cache(maxsize=1 << 14)
def _other(proposer: str, gain: float) -> str:
    return f", {proposer} {gain:.2f}"


def _estimate(proposer: str, rates: Rates) -> str:
    return f"{proposer} at {'' if rates.own else 'class '}acceptance {rates.first / 100:.2f}"


class Static:
    """The same k for every request, drafted by whoever brings most at it."""

    def __init__(self, k: int, picker: Picker) -> None:
        self._k = k
        self._picker = picker

    def wanted(self, request: RequestView, most: int) -> Decision:
        """The configured k."""
        text = f"static: k = {self._k} by configuration"
        return at(self._picker, request, min(self._k, most), Reason.STATIC, text)


class Off:
    """No draft for any request."""

    def __init__(self, why: str) -> None:
        self._decision = Decision(0, Reason.DISABLED, f"disabled: {why} by configuration")

    def wanted(self, request: RequestView, most: int) -> Decision:  # noqa: ARG002
        """Always 0."""
        return self._decision


def at(picker: Picker, request: RequestView, k: int, reason: Reason, text: str) -> Decision:
    """This k, by the option that brings most at it."""
    if k == 0:
        return Decision(0, reason, text)
    picks = picker.at(request, k)
    if not picks:
        return NO_OFFER
    _, reached, _, option, _, _ = picks[0]
    if reached < k:
        text = f"{text}, {option.proposer} has {reached}"
    return Decision(reached, reason, text, option, picker.nodes(option, reached))


_KINDS: Final[Mapping[str, Callable[[PolicySettings, Picker], Chooser]]] = {
    "goodput": lambda _, picker: Ewma(picker),
    "ewma": lambda _, picker: Ewma(picker),
    "static": lambda settings, picker: Static(min(settings.static_k, settings.k_max), picker),
    "off": lambda *_: Off('kind = "off"'),
}


def chooser(settings: PolicySettings, picker: Picker) -> Chooser:
    """The controller that the settings name. Raises ValueError for a kind that does not exist."""
    if settings.kind not in _KINDS:
        raise ValueError(f'there is no policy kind "{settings.kind}": choose one of {", ".join(_KINDS)}')
    if settings.k_max == 0:
        return Off("k_max = 0")
    return _KINDS[settings.kind](settings, picker)
