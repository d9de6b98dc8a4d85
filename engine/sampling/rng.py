"""Random numbers keyed by (seed, position, purpose, index), so that a request's draws do not depend on its batch.

A counter-based generator: the key is hashed, nothing is stored and nothing advances. The hash is the finaliser of
SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), applied once per
part of the key.

No number may be used twice where the text could show it. What is keyed by its own position is looked at in one round
only: a round looks at positions up to the last one that it commits, and the next round begins behind it. Numbers that
a round looks at beyond that, as block verification does, are keyed by the round: the position of its first token, with
an index for each number.
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Purpose(IntEnum):
    """What a number is drawn for. Different purposes at one position are independent."""

    ACCEPT = 1  # whether a drafted token is kept; the index is its place among its siblings
    SAMPLE = 2  # the recovered or bonus token
    DRAFT = 3  # the drafted token itself; keyed by the round, the index is the token's place in the draft
    TEXT = 4  # the seed of one of a request's texts
    BLOCK = 5  # whether a drafted block ends with a token; keyed by the round, the index is the token's place


def uniforms(
    seeds: NDArray[np.uint64],
    positions: NDArray[np.int64],
    purpose: Purpose,
    indices: NDArray[np.int64] | None = None,
) -> NDArray[np.float64]:
    """Float64 uniforms in [0, 1), one per (seed, position, index). Shapes [N] each -> [N]; no indices are zeros."""
    state = _keyed(seeds, positions.astype(np.uint64), purpose, indices)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def text_seed(seed: int, index: int) -> int:
    """The seed of text `index` of a request with this seed, index >= 1; text 0 has the request's own."""
    return int(_keyed(np.array([seed], np.uint64), np.array([index], np.uint64), Purpose.TEXT)[0])


def _keyed(
    seeds: NDArray[np.uint64],
    places: NDArray[np.uint64],
    purpose: Purpose,
    indices: NDArray[np.int64] | None = None,
) -> NDArray[np.uint64]:
    state = _mix(seeds + _GOLDEN)
    state = _mix(state ^ (places + _GOLDEN))
    use = np.uint64(purpose)
    return _mix(state ^ (use if indices is None else use + (indices.astype(np.uint64) << np.uint64(8))))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
