"""Whether the answers to fixed prompts are those of another target.

An engine does not give the same greedy answer each time: its sums are rounded in another order when others run beside,
and where two tokens are nearly as likely the text takes another way. How often that happens is measured by asking the
same target again; a change is more of it than chance explains (R. A. Fisher's exact test, one-sided). Prompts that
always differ, or never do, make chance smaller than the test takes it for, which errs towards silence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import comb
from typing import Final, NamedTuple

MOST_BY_CHANCE: Final = 1e-5
"""With which a replay that shows nothing but noise is taken for a change: asked each hour, once in ten years."""
_LEAST: Final = 8
"""Answers, below which nothing is said."""
_LEAST_PART: Final = 0.25
"""Of the answers, that must differ however seldom they did before."""


class Manner(StrEnum):
    """How an answer was had. Answers are compared with those that were had alike."""

    ALONE = "alone"
    BESIDE = "beside"
    """While others were served."""


class Answer(NamedTuple):
    """To one prompt."""

    print: str
    """A fingerprint of the text."""
    manner: Manner


class Noise(NamedTuple):
    """Of one target and one manner: so many answers differed from its first, of so many that were compared."""

    differed: int = 0
    compared: int = 0


@dataclass(frozen=True, slots=True)
class Texts:
    """What replays of two moments say."""

    differed: int
    compared: int
    chance: float
    """That as many differ where nothing has changed; 1 where nothing is known."""
    counts: Mapping[Manner, Noise] = field(default_factory=dict)
    """Of this comparison, by manner: noise, if the target is the same."""

    @property
    def changed(self) -> bool:
        """Whether it is another target."""
        return self.chance <= MOST_BY_CHANCE


def compare(
    first: Sequence[Answer | None], now: Sequence[Answer | None], noise: Mapping[Manner, Noise]
) -> Texts:
    """Two replays of the same prompts, None where one was not answered. noise: of the target of `first`."""
    both = [(a.print != b.print, b.manner) for a, b in zip(first, now, strict=True) if a and b]
    counts = {manner: _of(both, manner) for manner in Manner}
    chances = [_chance(noise.get(manner, Noise()), one) for manner, one in counts.items()]
    return Texts(
        sum(differs for differs, _ in both), len(both), min(1.0, len(chances) * min(chances)), counts
    )


def _of(both: Sequence[tuple[bool, Manner]], manner: Manner) -> Noise:
    found = [differs for differs, had in both if had is manner]
    return Noise(sum(found), len(found))


def _chance(before: Noise, now: Noise) -> float:
    """Of the answers that differed, before and now together, that at least so many fall on now."""
    if now.compared < _LEAST or now.differed < _LEAST_PART * now.compared:
        return 1.0
    every, differed = before.compared + now.compared, before.differed + now.differed
    ways = sum(
        comb(differed, d) * comb(every - differed, now.compared - d)
        for d in range(now.differed, min(differed, now.compared) + 1)
    )
    return ways / comb(every, now.compared)
