"""Whether drafting really is faster than not drafting, at the load that there is: measured, not reckoned.

What a step is expected to bring rests on estimates of acceptance and cost, which may be wrong together. So the steps
themselves are compared, by how many sequences decode:

band     numbers of sequences that differ by less than a fifth
pace     of a step: its tokens for each sequence, over its seconds, in units of what a plain step is reckoned to take.
         Number of sequences and context drop out of it, and a plain step that was reckoned rightly has 1
look     a plain step in `LOOK_EVERY` where all others draft, so that the plain pace is known
trial    where drafting seems to be slower: drafts and plain steps in turn, since a machine is not equally fast at all
         times and only neighbours compare. It ends when one is faster by `_SURE` standard errors, or after `_TRIAL`
rest     what follows a lost trial: no drafts in this band for so many steps, then another trial, and twice the rest
         whenever it is lost again

Where a trial was not lost, drafting goes on, and the next one is not begun within as many steps, twice as many each
time. A look costs at most the gain of drafting in one step of `LOOK_EVERY`; trials and rests, at most one step in eight
of those that could have drafted.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from math import log2, sqrt
from typing import Final

from policies.base import StepSeen

LOOK_EVERY: Final = 256
"""Steps."""

_SURE: Final = 3.0
_FEWEST: Final = 12  # steps of either kind, before a trial ends
_TRIAL: Final = 64  # steps of both kinds
_FIRST_REST: Final = 512  # steps
_LONGEST_REST: Final = 1 << 15
_SEEMS_SLOWER: Final = 0.97  # pace of drafts for that of plain steps
_REMEMBERED: Final = 64.0  # steps behind a pace
_LONGEST: Final = (
    4.0  # a step that took so many times as long as reckoned says something of the machine, not of drafts
)


class Verdict(Enum):
    """What a step may do."""

    DRAFT = auto()
    LOOK = auto()  # a plain step, to measure it
    REST = auto()  # a plain step, because drafting is slower


@dataclass(slots=True)
class _Paces:
    """Sums over steps of one kind."""

    steps: float = 0.0
    tokens: float = 0.0
    time: float = 0.0
    tokens2: float = 0.0
    mixed: float = 0.0
    time2: float = 0.0

    def add(self, tokens: float, time: float, remembered: float = 0.0) -> None:
        kept = 1.0 if self.steps < remembered or not remembered else 1.0 - 1.0 / remembered
        self.steps = self.steps * kept + 1.0
        self.tokens = self.tokens * kept + tokens
        self.time = self.time * kept + time
        self.tokens2 = self.tokens2 * kept + tokens * tokens
        self.mixed = self.mixed * kept + tokens * time
        self.time2 = self.time2 * kept + time * time

    @property
    def pace(self) -> float:
        return self.tokens / self.time

    @property
    def variance(self) -> float:
        """Of the pace: a ratio of two sums."""
        pace = self.pace
        spread = self.tokens2 - 2 * pace * self.mixed + pace * pace * self.time2
        return max(spread, 0.0) / (self.time * self.time)


@dataclass(slots=True)
class _Trial:
    plain: _Paces = field(default_factory=_Paces)
    drafted: _Paces = field(default_factory=_Paces)
    turn: int = 0  # steps


@dataclass(slots=True)
class _Band:
    plain: _Paces = field(default_factory=_Paces)
    drafted: _Paces = field(default_factory=_Paces)
    since_plain: int = 0  # steps with drafts
    trial: _Trial | None = None
    resting: int = 0  # steps left
    rest: int = _FIRST_REST
    quiet: int = 0  # steps until another trial may begin
    pause: int = _FIRST_REST


class Check:
    """Compares, band by band. Its steps differ in the policy's drafts alone: drafts of others' choosing are in all of
    them, or in none.
    """

    def __init__(self) -> None:
        self._bands: dict[int, _Band] = {}

    def verdict(self, sequences: int) -> Verdict:
        """What a step of so many that decode may do."""
        band = self._band(sequences)
        if band.resting:
            return Verdict.REST
        if band.trial is not None:
            return Verdict.DRAFT if band.trial.turn % 2 else Verdict.LOOK
        return Verdict.LOOK if band.since_plain >= LOOK_EVERY else Verdict.DRAFT

    def is_trying(self, sequences: int) -> bool:
        """Whether drafts and plain steps take turns."""
        return self._band(sequences).trial is not None

    def text(self, sequences: int) -> str:
        """Why a step of so many has no drafts."""
        band = self._band(sequences)
        if band.resting:
            share = band.drafted.pace / band.plain.pace
            what = f"with about {sequences} decoding drafts bring {share:.2f} of plain"
            return f"measured: {what}; off for {band.resting} steps"
        return "measured: a step without drafts, to compare"

    def observe(self, step: StepSeen, seconds: float, reckoned: float, *, drafted: bool) -> None:
        """Learn from a step just done. drafted: whether it had drafts that the policy thought worth it.

        seconds: that it took, with drafts of its own. reckoned: those of a plain step of its sequences.
        """
        if step.prefill_rows or not step.sequences or reckoned <= 0:
            return
        band = self._band(step.sequences)
        tokens = step.committed / step.sequences
        time = min(seconds / reckoned, _LONGEST * max(tokens, 1.0))
        band.since_plain = band.since_plain + 1 if drafted else 0
        band.quiet = max(band.quiet - 1, 0)
        if band.resting:
            band.resting -= 1
            band.trial = None if band.resting else _Trial()
            return
        (band.drafted if drafted else band.plain).add(tokens, time, _REMEMBERED)
        if band.trial is not None:
            band.trial.turn += 1
            (band.trial.drafted if drafted else band.trial.plain).add(tokens, time)
            _judge(band, band.trial)
        elif not band.quiet and _seems_slower(band):
            band.trial = _Trial()

    def _band(self, sequences: int) -> _Band:
        key = round(2 * log2(max(sequences, 1)))
        band = self._bands.get(key)
        if band is None:
            band = self._bands[key] = _Band()
        return band


def _seems_slower(band: _Band) -> bool:
    if min(band.plain.steps, band.drafted.steps / 2) < _FEWEST / 2:
        return False
    return band.drafted.pace < _SEEMS_SLOWER * band.plain.pace


def _judge(band: _Band, trial: _Trial) -> None:
    """End the trial, if it has an outcome."""
    plain, drafted = trial.plain, trial.drafted
    if min(plain.steps, drafted.steps) < _FEWEST:
        # What is not drafted in its turn cannot be judged: what it was once says nothing.
        if trial.turn >= _TRIAL:
            band.trial, band.drafted = None, _Paces()
        return
    ahead, noise = drafted.pace - plain.pace, sqrt(plain.variance + drafted.variance)
    if abs(ahead) <= _SURE * noise and trial.turn < _TRIAL:
        return
    band.trial, band.plain, band.drafted = None, plain, drafted
    if ahead < -_SURE * noise:
        band.resting, band.rest = band.rest, min(2 * band.rest, _LONGEST_REST)
    else:
        band.quiet, band.pause = band.pause, min(2 * band.pause, _LONGEST_REST)
        band.rest = _FIRST_REST
