"""Which layers to leave out: a beam search, layer by layer, for the most tokens a second.

What a set is worth is told by the caller, so that this file decides and computes nothing else. The search goes on for
some rounds after the best set so far, since two layers may only be worth leaving out together.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

Skip = tuple[int, ...]

_PATIENCE: Final = 3  # rounds, of one more layer each, without a better set


class Progress(NamedTuple):
    """After each set that was looked at."""

    tried: int
    best: Skip
    worth: float
    left: int
    """Sets that are still looked at, about, if no better one is found."""


def search(layers: int, worth: Callable[[Skip], float], *, width: int) -> Iterator[Progress]:
    """Yields after each set; the last one's best is the answer. width: sets of each size that are gone on from.

    Deterministic: among equals the set of the earlier layers is taken.
    """
    best: Skip = ()
    beam = [best]
    tried, since, best_worth = 0, 0, 0.0
    while beam and since < _PATIENCE:
        since += 1
        found: list[tuple[float, Skip]] = []
        wider = _wider(beam, layers)
        for skip in wider:
            found.append((-worth(skip), skip))
            tried += 1
            if -found[-1][0] > best_worth:
                best, best_worth, since = skip, -found[-1][0], 0
            left = len(wider) - len(found) + (_PATIENCE - since) * width * layers
            yield Progress(tried, best, best_worth, left)
        beam = [skip for _, skip in sorted(found)[:width]]


def _wider(beam: list[Skip], layers: int) -> list[Skip]:
    """These sets with one more layer each, in order; not all layers at once, for nothing would be left."""
    wider = {tuple(sorted((*skip, layer))) for skip in beam for layer in range(layers) if layer not in skip}
    return sorted(skip for skip in wider if len(skip) < layers)
