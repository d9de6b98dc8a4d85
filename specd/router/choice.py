"""Which instance gets a request. Pure: time is an argument.

The load policy is the daemon's own, and so is what it is told: how many requests run, here in both instances together,
since both are taken to compute on one machine. In the engine it is told once a step; here at each arrival, and for the
time in between once for each `STEP`, so that `dwell_steps` are about as long as they are there.
"""

from collections.abc import Container
from dataclasses import replace
from typing import Final, Literal, NamedTuple, get_args

from policies.base import LoadView
from policies.load import LoadLimit, LoadPolicy, rules_of
from policies.settings import PolicySettings

Name = Literal["speculating", "plain"]
NAMES: Final[tuple[Name, ...]] = get_args(Name)

Reason = Literal["drafts", "load", "asked", "only_one", "none"]
"""drafts: the load allows them; load: it does not; asked: the request wants none; only_one: the instance that it would
go to is down; none: both are."""

STEP: Final = 0.05
"""Seconds, as a step of a small engine."""

_CAUGHT_UP: Final = 1000
"""Steps at most that are made up for at once: more than anybody dwells."""


class Choice(NamedTuple):
    """Whom to ask, the first one first."""

    order: tuple[Name, ...]
    reason: Reason


def settings_for(policy: PolicySettings, draft: int | None) -> PolicySettings:
    """Of a speculating instance that always drafts alike: the caps by hand hold where none are configured."""
    k = draft or 1
    return replace(policy, kind="static", objective="throughput", k_max=k, static_k=min(k, policy.static_k))


def never_reached(settings: PolicySettings) -> str | None:
    """Why no request would ever be drafted for, if so."""
    most = max(cap for _, cap in rules_of(settings).table)
    if most >= settings.k_max:
        return None
    return (
        f"router.draft = {settings.k_max} is above every cap of policy.load.table, of which the largest is {most}:"
        " no request would ever go to the speculating instance; raise a cap, or lower router.draft"
    )


class LoadWatch:
    """The load policy beside requests instead of steps."""

    def __init__(self, settings: PolicySettings, now: float) -> None:
        """now: seconds on a clock that never goes back."""
        self._policy = LoadPolicy(settings)
        self._settings = settings
        self._load = LoadView(0, 0, 1.0, now)
        self._at = now
        self.limit = self._policy.step(self._load)

    def configure(self, settings: PolicySettings) -> None:
        """By these rules from now on."""
        self._settings = settings
        self._policy.configure(settings)

    def arrived(self, now: float, running: int, context: int) -> LoadLimit:
        """What holds for one that came, and is counted already. context: tokens of all that run, about."""
        self.passed(now, running, context)
        self.limit = self._policy.step(self._load)
        return self.limit

    def passed(self, now: float, running: int, context: int) -> None:
        """So much runs from now on; until now, what was said last did."""
        steps = int((now - self._at) / STEP)
        for _ in range(min(steps, self._settings.load.dwell_steps + 1, _CAUGHT_UP)):
            self.limit = self._policy.step(self._load)
        self._at += steps * STEP
        self._load = LoadView(running, 0, 1.0, now, context)

    @property
    def drafts(self) -> bool:
        """Whether what came last may be drafted for."""
        return self.limit.cap >= self._settings.k_max


def choose(load: LoadWatch, down: Container[Name], *, declined: bool) -> Choice:
    """down: which instances do not serve. declined: the request wants no drafts."""
    wanted, reason = _wanted(load, declined=declined)
    there = tuple(name for name in sorted(NAMES, key=lambda name: name != wanted) if name not in down)
    if not there:
        return Choice((), "none")
    return Choice(there, reason if there[0] == wanted else "only_one")


def _wanted(load: LoadWatch, *, declined: bool) -> tuple[Name, Reason]:
    if declined:
        return "plain", "asked"
    return ("speculating", "drafts") if load.drafts else ("plain", "load")
