"""What an engine has counted, and what was added to it from one look to the next.

round      one verification of a draft: it keeps some of the drafted tokens and adds one of the target's own
phantom    a round that the engine counts and no request had: steps that ranks without work take beside others
"""

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import zip_longest
from math import isnan, nan
from typing import Any, Final

_GAUGES: Final = ("running", "started", "length", "k", "whole")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Since the engine was started, or, as a difference, since the look before. NaN is for what it does not tell."""

    drafts: float
    """Rounds in which something was drafted."""
    drafted: float
    """Tokens; NaN where drafts differ in length and nobody counts."""
    accepted: float
    """Drafted tokens that were kept."""
    kept: tuple[float, ...] = ()
    """By draft position: rounds that kept it. Empty where it is not told."""
    offered: tuple[float, ...] = ()
    """By draft position: rounds whose draft went so far. Empty where it is not told."""
    examined: tuple[float, ...] = ()
    """By draft position: rounds that examined it. Empty where it is not told, which is nearly everywhere."""
    generated: float = nan
    """Tokens of answers, by whatever way they came."""
    requests: float = nan
    """That have ended."""
    running: float = nan
    """Requests, now."""
    started: float = nan
    """Unix seconds at which the process began."""
    firsts: float = 0.0
    """Of `drafts`: what an engine counts with them for each request, and was no round."""
    length: float = nan
    """What a round added to an answer lately, on average; of engines that do not count rounds."""
    k: int = 0
    """Tokens in each draft; 0 where drafts differ in length, or nobody tells."""
    whole: bool = False
    """Whether the engine counts a request when it has ended, all of it at once."""


class Look(StrEnum):
    """What a look at the counters came to. The values are those of the label `outcome`."""

    FINE = "fine"
    FIRST = "first"
    """There is nothing to compare with."""
    IDLE = "idle"
    """Nothing was drafted: no rate, not even 0."""
    PHANTOM = "phantom"
    """More was counted than answers had tokens for, or more accepted than drafted."""
    RESTARTED = "restarted"
    """Counters went back, or another process answers: what came in between is not known."""


@dataclass(frozen=True, slots=True)
class Interval:
    """From one look to the next."""

    look: Look
    came: Counters | None = None
    """As far as it is evidence: only where the look was fine."""


def interval(before: Counters | None, now: Counters) -> Interval:
    """What came since the look before."""
    if before is None:
        return Interval(Look.FIRST)
    came = _difference(before, now)
    if _restarted(before, now, came):
        return Interval(Look.RESTARTED)
    came = _derived(came)
    if not came.drafts > 0:
        return Interval(Look.IDLE)
    if _impossible(came):
        return Interval(Look.PHANTOM)
    return Interval(Look.FINE, came)


def _difference(before: Counters, now: Counters) -> Counters:
    names = (field.name for field in fields(Counters) if field.name not in _GAUGES)
    found: dict[str, Any] = {name: _less(getattr(now, name), getattr(before, name)) for name in names}
    return replace(now, **found, k=now.k if now.k == before.k else 0)


def _derived(came: Counters) -> Counters:
    """What follows from the rest where it is not counted: an answer has one token that no round added, and each round
    adds what it keeps and one.
    """
    added = came.generated - came.requests
    drafts = added / came.length if isnan(came.drafts) else max(came.drafts - came.firsts, 0.0)
    accepted = max(added - drafts, 0.0) if isnan(came.accepted) else came.accepted
    drafted = drafts * came.k if isnan(came.drafted) and came.k else came.drafted
    return replace(came, drafts=drafts, accepted=accepted, drafted=drafted)


def _less(now: float | tuple[float, ...], before: float | tuple[float, ...]) -> float | tuple[float, ...]:
    """Positions that nothing had reached before count from 0."""
    if isinstance(now, tuple) and isinstance(before, tuple):
        return tuple(a - b for a, b in zip_longest(now, before, fillvalue=0.0))
    assert not isinstance(now, tuple), "both are of one field"
    assert not isinstance(before, tuple), "both are of one field"
    return now - before


def _restarted(before: Counters, now: Counters, came: Counters) -> bool:
    another = not isnan(before.started) and not isnan(now.started) and before.started != now.started
    counted = (came.drafts, came.drafted, came.accepted, came.generated, came.requests, *came.kept)
    return another or any(count < 0 for count in counted)


def _impossible(came: Counters) -> bool:
    """A round adds a token to an answer, and keeps what it accepts unless the answer ends in it."""
    if came.accepted > came.drafted or came.drafts > came.generated:
        return True
    longest = came.k or len(came.kept)
    cut_off = longest * came.requests
    return bool(longest) and came.drafts + came.accepted > came.generated + cut_off
