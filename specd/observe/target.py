"""Which target answers at a URL: the one that is known there, or another.

known   what it said of itself and how it answered when it was met first, or when it was accepted by hand
now     what it says and answers since
It is another one where it says something else of itself, or where its answers are not those of the known one.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from policies.canary import Comparison, Counts
from policies.canary import compare as compare_drafts
from policies.observed import Manner, Noise, Texts, compare
from policies.observed.gather import POSITIONS
from specd.config.canary import CanarySection
from specd.observe.answer import Told
from specd.observe.identity import Identity
from specd.observe.replay import Replay


class Known(msgspec.Struct):
    """What outlives the daemon."""

    identity: Identity
    first: Replay | None = None
    noise: dict[Manner, Noise] = {}
    """How answers differed from `first` while it was the same target."""
    serial: int = 0
    """How many targets were accepted that said the same of themselves as the one before."""


class Same(StrEnum):
    """What is to be said of it."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """It was restarted, or was away, and has not been asked since."""


_NO_NOISE: Final[Mapping[Manner, Noise]] = {}


class Target:
    """What answers at one URL."""

    def __init__(self, known: Known | None) -> None:
        self.known = known
        self.now: Identity | None = None
        self.texts: Texts | None = None
        """Of the last replay that could be compared."""
        self.drafts: Comparison | None = None
        self._last: Replay | None = None
        self._doubted = known is not None

    @property
    def met(self) -> bool:
        """Whether it has said what it is."""
        return self.now is not None

    @property
    def same(self) -> Same:
        """Whether it is the one that is known."""
        if self.differences or (self.texts is not None and self.texts.changed):
            return Same.NO
        return Same.UNKNOWN if self._doubted else Same.YES

    @property
    def wanted(self) -> bool:
        """Whether it should be asked soon: it may be another, or how much its answers differ is not known yet."""
        return self._doubted or self.known is None or self.known.first is None or not self.known.noise

    @property
    def differences(self) -> list[str]:
        """Clauses: what it says of itself that the known one did not."""
        return [] if self.known is None or self.now is None else self.known.identity.differences(self.now)

    @property
    def revision(self) -> str:
        """Short, for labels: another one for another target."""
        if self.known is None:
            return "unknown"
        found = (self.now or self.known.identity).revision
        serial = self.known.serial + self._answers_differ
        return f"{found}.{serial}" if serial else found

    def doubt(self) -> None:
        """It was restarted, or away: it may be another."""
        self._doubted = True

    def identified(self, identity: Identity) -> None:
        """It says that it is this one."""
        if self.now is not None and self.now.target != identity.target:
            self.texts = self.drafts = self._last = None  # they are of what answered before
        self.now = identity
        if self.known is None:
            self.known, self._doubted = Known(identity), False

    def replayed(self, replay: Replay, canary: CanarySection) -> None:
        """It answered so."""
        assert self.known is not None, "it was asked who it is first"
        self._last, self._doubted = replay, False
        first = self.known.first
        if first is None or first.asked != replay.asked:
            self._begin_with(replay)
            return
        self.texts = compare(first.answers, replay.answers, self.known.noise or _NO_NOISE)
        self.drafts = _drafts(first, replay, canary)
        if self.same is Same.YES:
            self._learn(self.texts)

    def accept(self) -> None:
        """What answers now is meant to."""
        if self.known is None or self.now is None:
            return
        serial = self.known.serial + 1 if self._answers_differ and not self.differences else 0
        self.known = Known(self.now, self._last, serial=serial)
        self.texts, self.drafts, self._doubted = None, None, False

    @property
    def _answers_differ(self) -> bool:
        return self.texts is not None and self.texts.changed

    def _begin_with(self, replay: Replay) -> None:
        """What it is compared with from now on. Of one that says it is another, nothing is known to compare with."""
        assert self.known is not None, "as above"
        if not self.differences:
            self.known.first, self.known.noise = replay, {}
        self.texts = self.drafts = None

    def _learn(self, texts: Texts) -> None:
        assert self.known is not None, "as above"
        for manner, came in texts.counts.items():
            old = self.known.noise.get(manner, Noise())
            self.known.noise[manner] = Noise(old.differed + came.differed, old.compared + came.compared)


def _drafts(first: Replay, replay: Replay, canary: CanarySection) -> Comparison | None:
    """Prompt by prompt, of one measure, and to the same depth: what is examined behind it hangs on the k in force."""
    both = [
        (a, b) for a, b in zip(first.drafts, replay.drafts, strict=True) if a and b and a.measure == b.measure
    ]
    measures = {a.measure for a, _ in both}
    measure = POSITIONS if POSITIONS in measures else next(iter(sorted(measures)), None)
    both = [(a, b) for a, b in both if a.measure == measure]
    if not both:
        return None
    depth = min(len(each.examined) for pair in both for each in pair)
    before, after = ([_counts(pair[i], depth) for pair in both] for i in (0, 1))
    return compare_drafts(before, after, confidence=canary.confidence, tolerance=canary.tolerance)


def _counts(drafts: Told, depth: int) -> Counts:
    return Counts(drafts.examined[:depth], drafts.accepted[:depth])
