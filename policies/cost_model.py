"""What a step costs, learned from the steps themselves, beginning with `policies.cost.StepCosts`.

A step without prompts in it is taken to take

    curve(rows) + sequence * texts + key * tokens attended to + of each proposer: fixed, levels, nodes, tokens owed

The curve goes straight between knots and never falls. Drafting is timed apart, so what each proposer costs is learned
apart from the rest; of those whom nobody times, it is learned with the rest, by what differs between steps. A step with
rows of prompts teaches nothing of all this, since such a row costs something else, but for the drafts that are timed.

A change of all costs at once, by 1.5, is followed within twice `tracker.LASTING` steps where the noise is below 10 %,
and within 150 steps whatever the noise.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from policies.base import Drafting, StepSeen
from policies.cost import DraftCost, StepCosts
from policies.cost_error import CostError, CostErrors
from policies.tracker import Tracker, Vector

_KNOTS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_TOGETHER: Final = 0.35  # standard deviation of all costs together, relative to what they are thought to be
_APART: Final = 0.2  # of a knot's beside that
_OCTAVES: Final = 3.0  # within which a curve keeps its shape: what is not seen follows what is seen
_ALONE: Final = 0.02  # of a knot's that none beside it shares
_KEY: Final = 2e-5  # of a plain step: standard deviation of what a token costs that is attended to
_TEXT: Final = 0.01  # of a plain step: of what a text costs beside its rows
_OF_DRAFT: Final = np.array([0.3, 0.3, 0.1, 0.02])  # of a draft of one level: of fixed, level, node, owed
_CHEAPEST: Final = 1e-4  # of a plain step: what is known of drafts is not known better than that
_LOOK: Final = 16  # steps between looks at whether what is read is still right
_MOVED: Final = 0.02  # relative: changes that are not worth reading anew
_SLIGHT: Final = 0.002  # of a plain step: what is less than that may change as it likes


class CostModel:
    """The costs of one engine on one host, as they are now."""

    def __init__(self, start: StepCosts) -> None:
        """start: measured, of a profile, or a guess."""
        self._errors = CostErrors()
        self.begin(start)

    def begin(self, start: StepCosts) -> None:
        """Begin anew. What is reported of errors stays."""
        self.now = start
        """As they are read: another object whenever they have changed by more than noise."""
        self._target = _Target(start)
        self._drafts: dict[str, Tracker] = {}
        self._steps = 0

    def adopt(self, drafts: Mapping[str, DraftCost]) -> None:
        """Take over what was measured of these proposers; all else stays as it was learned."""
        for name in drafts:
            self._drafts.pop(name, None)
        self.now = self.now.with_drafts(drafts)

    def observe(self, step: StepSeen) -> bool:
        """Learn from a step. True where `now` is another since."""
        took = step.seconds - sum(drafting.seconds for drafting in step.drafting)
        changed = False
        if step.sequences and not step.prefill_rows and took > 0.0:
            self._errors.add(step.rows, step.seconds, self.now.of(step))
            changed = self._target.observe(step, took)
        for drafting in step.drafting:
            if drafting.proposer not in self.now.untimed:
                changed = self._learn_draft(drafting) or changed
        self._steps += 1
        return (changed or self._steps % _LOOK == 0) and self._look()

    def error(self) -> tuple[CostError, ...]:
        """How far predictions were off that were made before each step was learned from, of the last steps without
        rows of prompts: of all, then by range of rows.
        """
        return self._errors.read()

    def _learn_draft(self, drafting: Drafting) -> bool:
        tracker = self._drafts.get(drafting.proposer)
        if tracker is None:
            known = self.now.draft(drafting.proposer)
            tracker = self._drafts[drafting.proposer] = _draft_tracker(known, self.now.plain)
        amounts = np.array([1.0, drafting.levels, drafting.tokens, drafting.owed])
        return tracker.observe(amounts, drafting.seconds)

    def _look(self) -> bool:
        """Read anew what has moved."""
        slight = _SLIGHT * self.now.plain
        drafts = {name: _read_draft(tracker.now) for name, tracker in self._drafts.items()}
        moved = {name: cost for name, cost in drafts.items() if _differs(cost, self.now.draft(name), slight)}
        target = self._target.read(self.now)
        if target is None and not moved:
            return False
        now = target or self.now
        self.now = now.with_drafts(self._unseen(now.plain / self.now.plain) | moved)
        return True

    def _unseen(self, slower: float) -> dict[str, DraftCost]:
        """Those of whom no draft was seen: what is thought of them is so many plain steps."""
        learned = {*self._drafts, *self.now.untimed}
        return {name: cost.times(slower) for name, cost in self.now.drafts.items() if name not in learned}


class _Target:
    """The target's part of a step: [knots], then four of each draft that nobody times, then a text's, then a key's."""

    def __init__(self, start: StepCosts) -> None:
        self._rows = np.array(sorted({*_KNOTS, *start.sizes}), np.float64)
        self._place = {int(rows): place for place, rows in enumerate(self._rows)}
        self._untimed = {name: len(self._rows) + 4 * i for i, name in enumerate(start.untimed)}
        known = [(name, _usual(start.draft(name), start.plain)) for name in start.untimed]
        drafts = [_amounts(start.draft(name)) for name, _ in known]
        curve = start.table(int(self._rows[-1]))[self._rows.astype(np.int64)]
        costs = np.array([*curve, *(cost for draft in drafts for cost in draft), start.sequence, start.key])
        alone = [*(_ALONE * curve), *(cost for _, usual in known for cost in _OF_DRAFT * usual)]
        alone += [
            max(_TEXT * start.plain, _TOGETHER * start.sequence),
            max(_KEY * start.plain, _TOGETHER * start.key),
        ]
        covariance = np.outer(_TOGETHER * costs, _TOGETHER * costs) + np.diag(np.square(alone))
        octaves, knots = np.log2(self._rows), len(curve)
        near = np.exp(-0.5 * np.square((octaves[:, None] - octaves) / _OCTAVES))
        covariance[:knots, :knots] += near * np.outer(_APART * curve, _APART * curve)
        self._tracker = Tracker(costs, covariance)
        self._amounts = np.zeros(len(costs))
        self._read = self._tracker.now.copy()  # when it was read last

    def observe(self, step: StepSeen, took: float) -> bool:
        """See Tracker."""
        amounts = self._amounts
        amounts[:] = 0.0
        self._lay(amounts, step.rows)
        for drafting in step.drafting if self._untimed else ():
            if (place := self._untimed.get(drafting.proposer)) is not None:
                amounts[place : place + 4] = 1.0, drafting.levels, drafting.tokens, drafting.owed
        amounts[-2], amounts[-1] = step.sequences, step.context
        return self._tracker.observe(amounts, took)

    def _lay(self, amounts: Vector, rows: int) -> None:
        """Share a number of rows out among the knots beside it; beyond the last, along the last line."""
        place = self._place.get(rows)
        if place is not None:
            amounts[place] = 1.0
            return
        right = min(int(self._rows.searchsorted(rows)), len(self._rows) - 1)
        left, width = self._rows[right - 1], self._rows[right] - self._rows[right - 1]
        amounts[right] = (rows - left) / width
        amounts[right - 1] = 1.0 - amounts[right]

    def read(self, before: StepCosts) -> StepCosts | None:
        """As it is now; None where that is as good as before, or says that rows cost nothing at all."""
        now, knots = self._tracker.now, len(self._rows)
        apart = np.abs(now - self._read)
        apart[-1] *= 1024.0  # of a text of some length
        moved = apart > np.maximum(_MOVED * self._read, _SLIGHT * before.plain)
        if not moved.any() or not now[:knots].any():
            return None
        self._read = now.copy()
        curve = rising(shared(now[:knots], self._rows), 1.0 / self._tracker.spread()[:knots])
        steps = tuple((rows, cost) for rows, cost in zip(self._place, curve, strict=True))
        drafts = {name: _read_draft(now[place : place + 4]) for name, place in self._untimed.items()}
        found = before.with_steps(steps, sequence=float(now[-2]), key=float(now[-1]))
        return found.with_drafts(drafts) if drafts else found


def shared(costs: Vector, rows: Vector) -> Vector:
    """Of steps of so many rows, ascending: none less than its share of a larger one, which could be taken in parts. So
    none is nothing: what is reckoned by it is divided by it.
    """
    found: Vector = np.maximum.accumulate((costs / rows)[::-1])[::-1] * rows
    return found


def rising(values: Vector, weights: Vector) -> list[float]:
    """The nearest values that never fall, by weighted squares: neighbours that do are pooled, until none does."""
    pools: list[tuple[float, float, int]] = []  # value, weight, how many
    for pool in zip(values.tolist(), weights.tolist(), [1] * len(values), strict=True):
        value, weight, many = pool
        while pools and pools[-1][0] >= value:
            before, its_weight, its_many = pools.pop()
            value = (before * its_weight + value * weight) / (its_weight + weight)
            weight, many = weight + its_weight, many + its_many
        pools.append((value, weight, many))
    return [value for value, _, many in pools for _ in range(many)]


def _draft_tracker(known: DraftCost, plain: float) -> Tracker:
    start, alone = _amounts(known), _OF_DRAFT * _usual(known, plain)
    together = _TOGETHER * start
    covariance = np.outer(together, together) + np.diag(np.square(alone))
    return Tracker(start if start.any() else alone, covariance)


def _amounts(cost: DraftCost) -> Vector:
    return np.array([cost.fixed, cost.level, cost.node, cost.owed])


def _usual(known: DraftCost, plain: float) -> float:
    """Of a draft of one level, about."""
    return max(known.fixed + known.level, _CHEAPEST * plain)


def _read_draft(now: Vector) -> DraftCost:
    fixed, level, node, owed = now.tolist()
    return DraftCost(level=level, fixed=fixed, node=node, owed=owed)


def _differs(one: DraftCost, other: DraftCost, slight: float) -> bool:
    pairs = ((one.level, other.level), (one.fixed, other.fixed), (8 * one.node, 8 * other.node))
    owed = abs(one.owed - other.owed) > max(_MOVED * other.owed, slight / 64)
    return owed or any(abs(new - old) > max(_MOVED * old, slight) for new, old in pairs)
