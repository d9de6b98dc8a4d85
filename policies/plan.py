"""What a draft of k tokens is expected to bring, as formulas.

From Leviathan, Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding" (ICML 2023),
section 3. Acceptance is the chance that a drafted token is accepted once it is examined.
"""

from collections.abc import Sequence
from typing import NamedTuple

from policies.cost import StepCosts


def expected_tokens(acceptance: float, k: int) -> float:
    """Tokens that a round with k drafted tokens commits on average, the target's own included.

    Equation (1) there: (1 - a^(k+1)) / (1 - a), summed as 1 + a + ... + a^k so that a = 1 is no special case.
    """
    return expected_by_position([acceptance] * k)[-1]


class Gain(NamedTuple):
    """What drafts of one kind bring at their acceptance."""

    of: tuple[float, ...]
    """By k: times as many tokens a second as plain decoding; 1 for k = 0."""
    best: tuple[int, ...]
    """By the most levels that are allowed: the k that brings most; of equals the smallest."""


def gain(first: float, later: float, costs: Sequence[float]) -> Gain:
    """first, later: acceptance of the first level, and of each after it once it is examined. costs: of a round with
    0, 1, ... levels, in plain rounds.
    """
    gains: list[float] = []
    best: list[int] = []
    for k, cost in enumerate(costs):
        tokens = 1.0 + first * expected_tokens(later, k - 1) if k else 1.0
        gains.append(tokens / cost)
        best.append(k if not best or gains[k] > gains[best[-1]] else best[-1])
    return Gain(tuple(gains), tuple(best))


def expected_by_position(acceptances: Sequence[float]) -> list[float]:
    """Tokens that a round with 0, 1, ... drafted tokens commits on average, where each position has an acceptance of
    its own, given that those before were accepted.
    """
    total = reached = 1.0
    tokens = [total]
    for acceptance in acceptances:
        reached *= acceptance
        total += reached
        tokens.append(total)
    return tokens


def speedups(
    costs: StepCosts, proposer: str, acceptances: Sequence[float], *, running: int = 1, context: int = 0
) -> list[float]:
    """By k: how many times as many tokens a second as plain decoding, where so many run and all draft k tokens.

    Theorem 3.8 there, with an acceptance for each position and a step that costs what it costs. context: tokens that
    each request attends to.
    """
    draft = costs.draft(proposer)
    plain = costs.target(running, running, running * context)
    found = []
    for k, tokens in enumerate(expected_by_position(acceptances)):
        seconds = costs.target(running * (1 + k), running, running * context) + draft.of(k, running * k)
        found.append(tokens * plain / seconds)
    return found


def load_table(
    costs: StepCosts, proposer: str, acceptances: Sequence[float], *, max_running: int, context: int
) -> list[tuple[int, int]]:
    """(up to this many running, the k that brings most if all draft as much), for all numbers up to `max_running`."""
    table: list[tuple[int, int]] = []
    for running in range(1, max_running + 1):
        gains = speedups(costs, proposer, acceptances, running=running, context=context)
        k = gains.index(max(gains))
        if table and table[-1][1] == k:
            table.pop()
        table.append((running, k))
    return table
