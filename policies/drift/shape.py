"""What a fall looks like: since when, from where to where, at once or little by little."""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from policies.drift.base import Kind
from policies.drift.history import Past

_SLOW: Final = 100  # requests for which a slope has gone on at least
_FEWEST: Final = 5  # requests after a step: with fewer, the last odd one would be one
_RECENT: Final = 32  # requests that say where things stand

Floats = NDArray[np.float64]


class Shape(NamedTuple):
    """The likeliest change of a position's rate."""

    kind: Kind
    before: float
    after: float
    error: float
    """Standard error of `after - before`."""
    since: float
    requests_before: int
    requests_after: int

    @property
    def drop(self) -> float:
        """How far it fell."""
        return self.before - self.after


def shape(past: Past) -> Shape | None:
    """None where nothing fell, or too little is known."""
    if len(past.mean) < 2:
        return None
    split, step_loss = _step(past)
    if step_loss == np.inf:
        return None
    start, slope_loss = _slope(past)
    slow = past.requests[start:].sum() >= _SLOW and slope_loss < step_loss
    if not slow:
        return _told(past, Kind.STEP, split, split)
    start = max(start, 1)
    return _told(past, Kind.DECAY, start, max(_recent_from(past), start))


def _told(past: Past, kind: Kind, start: int, last: int) -> Shape:
    """Between the blocks before `start` and those from `last` on."""
    ahead, behind = past.weight[:start].sum(), past.weight[last:].sum()
    return Shape(
        kind,
        before=float(past.weight[:start] @ past.mean[:start] / ahead),
        after=float(past.weight[last:] @ past.mean[last:] / behind),
        error=float(np.sqrt(1 / ahead + 1 / behind)),
        since=float(past.start[start]),
        requests_before=int(past.requests[:start].sum()),
        requests_after=int(past.requests[start:].sum()),
    )


def _step(past: Past) -> tuple[int, float]:
    """(block with which a fall to another level fits best, weighted sum of squared deviations; inf without any)."""
    weight = past.weight.cumsum()
    total = (past.weight * past.mean).cumsum()
    squares = float(past.weight @ past.mean**2)
    ahead = total[:-1] ** 2 / weight[:-1]
    behind = (total[-1] - total[:-1]) ** 2 / (weight[-1] - weight[:-1])
    fell = total[:-1] / weight[:-1] > (total[-1] - total[:-1]) / (weight[-1] - weight[:-1])
    enough = past.requests[::-1].cumsum()[::-1][1:] >= _FEWEST
    loss = np.where(fell & enough, squares - ahead - behind, np.inf)
    split = int(loss.argmin())
    return split + 1, float(loss[split])


def _slope(past: Past) -> tuple[int, float]:
    """(block with which an even fall fits best, weighted sum of squared deviations then)."""
    middle = past.requests.cumsum() - past.requests / 2
    run = np.maximum(middle[None] - middle[:, None], 0.0)  # [start, block]
    weight, mean = past.weight, past.mean - np.average(past.mean, weights=past.weight)
    run = run - (run @ weight / weight.sum())[:, None]
    along, across = run**2 @ weight, run @ (weight * mean)
    fits = np.where((along > 0) & (across < 0), across**2 / np.where(along > 0, along, 1.0), 0.0)
    start = int(fits.argmax())
    return start, float(weight @ mean**2 - fits[start])


def recent(past: Past) -> float:
    """The rate of the last requests; NaN without any."""
    return level(past)[0]


def level(past: Past) -> tuple[float, float]:
    """The same with its standard error."""
    if not len(past.mean):
        return float("nan"), float("nan")
    last = _recent_from(past)
    weight = float(past.weight[last:].sum())
    return float(past.weight[last:] @ past.mean[last:]) / weight, weight**-0.5


def _recent_from(past: Past) -> int:
    """The first of the last blocks that make up enough requests, or the first of all."""
    counted = past.requests[::-1].cumsum()
    return max(len(counted) - 1 - int(np.searchsorted(counted, _RECENT)), 0)
