"""What `specd calibrate` found of one pair of models on one host, and what follows from it for the load policy.

point      so many texts decoding together, each drafted for with the same k: 0 is speculation off
gain       tokens a second at a point over those with speculation off and as many texts
crossover  the number running at which the last k that still gained stops doing so
margin     what a k must gain to be allowed: cut-offs lie below the crossover by as much load as that takes
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import exp, log
from typing import Final

from policies.cost import StepCosts
from policies.load import MEASURES_LOAD, NO_CAP, Table
from policies.settings import PolicySettings

FORMAT: Final = 1
"""Of the file; another one is not read."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a profile was measured on, and of what. It holds for nothing else."""

    processor: str  # the model of the CPU or GPU
    cores: int
    threads: int
    target: str  # fingerprint
    drafts: tuple[str, ...]  # kinds, with the fingerprints of those that have weights of their own
    dtype: str
    quantization: str


@dataclass(frozen=True, slots=True)
class Point:
    """What was seen at one point."""

    running: int
    k: int
    context: int  # tokens of one text, about
    tokens_per_second: float
    p50: float  # seconds between two steps, which is what lies between a text's tokens
    p99: float
    tokens_a_round: Mapping[str, float] = field(default_factory=dict)  # by traffic class


@dataclass(frozen=True, slots=True)
class Cap:
    """What a profile says for `[policy.load]`."""

    table: Table
    off_above: int
    resume_at: int


@dataclass(frozen=True, slots=True)
class Profile:
    """As it stands in the file."""

    subject: Subject
    made: str  # the day
    mix: str
    margin: float
    costs: StepCosts
    points: tuple[Point, ...]
    long_points: tuple[Point, ...]
    """With longer texts."""
    crossover: int | None
    """None: none was found as far as was looked."""
    load: Cap
    """For policies that do not reckon with the load themselves."""
    context_table: Table
    format: int = FORMAT


_CALLED: Final[Mapping[str, str]] = {
    "processor": "processor",
    "cores": "number of cores",
    "threads": "number of compute threads",
    "target": "target",
    "drafts": "drafts",
    "dtype": "dtype",
    "quantization": "quantization",
}


def misfit(made_for: Subject, here: Subject) -> str | None:
    """Why a profile does not hold here, as a sentence, or None."""
    for name, called in _CALLED.items():
        theirs, ours = getattr(made_for, name), getattr(here, name)
        if theirs != ours:
            return f"it was measured with the {called} {_shown(theirs)}, here it is {_shown(ours)}"
    return None


def concluded(
    subject: Subject,
    costs: StepCosts,
    points: Sequence[Point],
    long_points: Sequence[Point],
    *,
    made: str,
    mix: str,
    margin: float,
) -> Profile:
    """A profile out of what was measured. points: with some of k = 0 among them, at the same numbers running."""
    short, long = _Gains(points), _Gains(long_points)
    return Profile(
        subject=subject,
        made=made,
        mix=mix,
        margin=margin,
        costs=costs,
        points=tuple(points),
        long_points=tuple(long_points),
        crossover=short.crossover(),
        load=_cap(short.table(margin)),
        context_table=_context_table(short.table(margin), long, margin),
    )


def with_load(settings: PolicySettings, profile: Profile, *, always: bool = False) -> PolicySettings:
    """The settings, with the profile's caps where the operator has said nothing and the policy needs them.

    One that reckons with the load does not, and has them only if `always` asks for it: where all drafts together lose,
    those of a few texts that are easy to guess may still pay.
    """
    load, cap = settings.load, profile.load
    if settings.kind in MEASURES_LOAD and not always:
        return settings
    if load.table is None and load.off_above is None:
        load = replace(load, table=cap.table, off_above=cap.off_above, resume_at=cap.resume_at)
    if not load.context_table:
        load = replace(load, context_table=profile.context_table)
    return replace(settings, load=load)


class _Gains:
    """Points by k, each over its like without speculation."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._plain = {point.running: point for point in points if point.k == 0}
        self._drafted = [point for point in points if point.k > 0]
        self.lengths = sorted({point.k for point in self._drafted})
        self.context = max((point.context for point in points), default=0)

    def of(self, k: int) -> list[tuple[int, float]]:
        """(number running, gain), ascending."""
        return sorted(
            (point.running, point.tokens_per_second / self._plain[point.running].tokens_per_second)
            for point in self._drafted
            if point.k == k
        )

    def table(self, margin: float) -> Table:
        """(up to this many running, k), where k is the most that gains the margin; k = 0 beyond the last pair."""
        bears = {k: _last_above(self.of(k), 1.0 + margin) for k in self.lengths}
        pairs: list[tuple[int, int]] = []
        for k in sorted(self.lengths, reverse=True):
            if bears[k] > (pairs[-1][0] if pairs else 0):
                pairs.append((bears[k], k))
        return tuple(pairs)

    def crossover(self) -> int | None:
        """The most running at which any k gains at all; None where the last one measured still does."""
        most = max((_last_above(self.of(k), 1.0) for k in self.lengths), default=0)
        return None if most >= NO_CAP else most


def _last_above(gains: Sequence[tuple[int, float]], floor: float) -> int:
    """The last number running at which the gain is no less, before it falls below for the first time. 0 if it begins
    below; `NO_CAP` if it does not fall. Between two points a gain is a line over the logarithm of the number.
    """
    if not gains or gains[0][1] < floor:
        return 0
    for (left, high), (right, low) in pairwise(gains):
        if low < floor:
            share = (high - floor) / (high - low)
            return int(exp(log(left) + share * (log(right) - log(left))) + 1e-9)
    return NO_CAP


def _reach(table: Table) -> int:
    """Up to how many running there are drafts."""
    return table[-1][0] if table else 0


def _cap(table: Table) -> Cap:
    """As settings. Where nothing gains, drafting is off from the first request on."""
    if not table:
        return Cap(((1, 0),), 0, 0)
    off_above = table[-1][0]
    return Cap(table, off_above, off_above * 2 // 3)


def _context_table(short: Table, long: _Gains, margin: float) -> Table:
    """The cut-off in tokens of all texts, where longer texts bear fewer of them than shorter ones do."""
    table = long.table(margin)
    if not long.lengths or _reach(table) >= _reach(short):
        return ()
    tokens = tuple((max(up_to * long.context, 1), k) for up_to, k in table)
    return (*tokens, (max(tokens[-1][0], 1) * 2 if tokens else 1, 0))


def _shown(value: object) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else f"{value}"
