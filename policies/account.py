"""What was behind a decision, in words and numbers. It is worked out only for those that somebody is told of."""

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from policies.base import Account, Option
from policies.columns import Columns
from policies.goodput import Allocation
from policies.lengths import Floats, Ints, Prices, rows_of_levels

TOLD: Final = 2
"""Alternatives."""


class Step(NamedTuple):
    """What one step's decisions rest on."""

    columns: Columns
    gains: Floats  # [K, O, b]
    prices: Prices
    place: Ints  # [b]
    k: Ints  # [b]
    found: Allocation
    options: tuple[tuple[Option, ...], ...]
    nodes: int  # of a tree, at most


def account(step: Step, i: int, why: str | None = None) -> Account:
    """Of the request at this place: how fast the step is expected to be, and would be if it alone were given another
    draft. why: what settled its draft, where that was not the numbers.
    """
    worth = _worth(step, i)  # [K + 1, O]
    place, k = int(step.place[i]), int(step.k[i])
    chosen = float(worth[k, place if k else 0])
    worth[k, place if k else slice(None)] = -np.inf
    others = []
    for _ in range(TOLD):
        levels, option = divmod(int(worth.argmax()), worth.shape[1])
        if not np.isfinite(worth[levels, option]):
            break
        others.append(
            (step.options[i][option].proposer if levels else "none", levels, float(worth[levels, option]))
        )
        worth[levels, option if levels else slice(None)] = -np.inf
    expected = [why] if why else [_expected(step, i, place) for place in range(len(step.options[i]))]
    return Account(", ".join([*expected, brings(k, chosen, others)]), chosen, tuple(others))


def brings(k: int, chosen: float, others: Iterable[tuple[str, int, float]]) -> str:
    """In words: what was chosen and what else there was, in tokens a second."""
    told = [f"k = {k} brings {chosen:.4g} tokens a second"]
    told += [f"{name} k = {k} {worth:.4g}" if k else f"k = 0 {worth:.4g}" for name, k, worth in others]
    return ", ".join(told)


def _worth(step: Step, i: int) -> Floats:
    """[K + 1, O] goodput by levels and option; -inf where there is no such draft, or where it would need more rows than
    are to be had beside those of the others.
    """
    prices, gains = step.prices, step.gains[:, :, i]
    levels = np.arange(len(gains) + 1)[:, None]
    proposer, width = step.columns.proposer[:, i], step.columns.width[:, i]
    added = np.cumsum(rows_of_levels(len(gains), width, step.nodes), axis=0)
    rows = np.concatenate([np.zeros((1, len(width)), dtype=np.intp), added])
    tokens = np.concatenate([np.zeros((1, len(width))), np.cumsum(gains, axis=0)])
    beside, deepest = _of_others(step, i)
    drafts = levels > 0
    passes = np.maximum(levels - deepest[proposer], 0) * prices.level[proposer]
    passes = passes + drafts * (deepest[proposer] == 0) * prices.fixed[proposer]
    own = passes + rows * prices.node[proposer] + drafts * step.columns.owed[:, i] * prices.owed[proposer]
    there = beside.rows + rows < len(prices.step)
    seconds = prices.step[np.where(there, beside.rows + rows, 0)] + beside.seconds + own
    worth: Floats = np.where(there, (beside.tokens + tokens) / seconds, -np.inf)
    worth[1:][gains <= 0] = -np.inf
    return worth


class _Beside(NamedTuple):
    tokens: float
    seconds: float  # without rows
    rows: int


def _of_others(step: Step, i: int) -> tuple[_Beside, Ints]:
    """(the step without the request's draft, [P] how deep the others go)."""
    columns, prices = step.columns, step.prices
    k = step.k.copy()
    k[i] = 0
    mine = step.place, np.arange(len(k))
    proposer, width = columns.proposer[mine], columns.width[mine]
    deepest = np.zeros(len(prices.level), dtype=np.intp)
    np.maximum.at(deepest, proposer, k)
    rows = np.where(width > 1, np.minimum(width * k, step.nodes), k)
    seconds = (rows * prices.node[proposer] + (k > 0) * columns.owed[mine] * prices.owed[proposer]).sum()
    seconds += (prices.fixed * (deepest > 0) + prices.level * deepest).sum()
    reached = np.arange(len(step.gains))[:, None] < k
    tokens = len(k) + (step.gains[:, *mine] * reached).sum()
    return _Beside(float(tokens), float(seconds), int(rows.sum())), deepest


def _expected(step: Step, i: int, place: int) -> str:
    gains = step.gains[:, place, i]
    later = f", then {gains[1] / gains[0]:.2f}" if len(gains) > 1 and gains[1] > 0 else ""
    return f"{step.options[i][place].proposer} at acceptance {gains[0]:.2f}{later}"
