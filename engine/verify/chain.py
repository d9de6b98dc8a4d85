"""Verification of chains, all requests of a step at once. The specification is `engine.verify.law`.

Rows are ragged: request i owns k_i + 1 rows of the target's logits, the last of which gives the bonus token.

    rows     | p0 p1 p2 | p0 | p0 p1 |        request 0 drafted 2, request 1 none, request 2 one
    drafts   | d0 d1    |    | d0    |
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.api import SamplingParams
from engine.draft.base import Draft
from engine.sampling.processors import RowParams, probabilities
from engine.sampling.rng import Purpose, uniforms
from engine.verify.draw import draw


@dataclass(frozen=True, slots=True)
class Claim:
    """One request's share of a verify: what was drafted, and how its tokens are drawn."""

    draft: Draft
    sampling: SamplingParams
    position: int  # of the first token that this round commits, counted from the prompt's start


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification says about one request's draft."""

    accepted: int
    examined: int
    token: int  # recovered if examined > accepted, else bonus
    fault: str | None = None  # the target's rows are not numbers: nothing was decided


def verify(logits: Tensor, claims: Sequence[Claim]) -> list[Verdict]:
    """Decide every request's round. logits: [sum(k_i + 1), V]."""
    starts = np.cumsum([0] + [len(claim.draft.tokens) + 1 for claim in claims])
    best, argmax = logits.max(dim=-1)
    finite = best.isfinite().tolist()
    verdicts: list[Verdict | None] = [None] * len(claims)
    sampled: list[int] = []
    top = argmax.tolist()
    for i, claim in enumerate(claims):
        rows = slice(int(starts[i]), int(starts[i + 1]))
        if not all(finite[rows]):
            verdicts[i] = Verdict(0, 0, 0, "the model returned values that are not finite numbers")
        elif claim.sampling.temperature == 0:
            verdicts[i] = greedy(claim.draft.tokens, top[rows])
        else:
            sampled.append(i)
    if sampled:
        chosen = [claims[i] for i in sampled]
        indices = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in sampled])
        for i, verdict in zip(sampled, rejection(logits[torch.from_numpy(indices)], chosen), strict=True):
            verdicts[i] = verdict
    return [verdict for verdict in verdicts if verdict is not None]


def greedy(draft: Sequence[int], top: Sequence[int]) -> Verdict:
    """Temperature 0: keep the draft while it is what the target would have said. top: argmax of the k+1 rows."""
    accepted = 0
    while accepted < len(draft) and draft[accepted] == top[accepted]:
        accepted += 1
    return Verdict(accepted, min(accepted + 1, len(draft)), top[accepted])


def rejection(logits: Tensor, claims: Sequence[Claim]) -> list[Verdict]:
    """Rejection sampling for requests with a temperature. logits: [sum(k_i + 1), V], the rows of `claims` only."""
    lengths = [len(claim.draft.tokens) for claim in claims]
    starts = np.cumsum([0] + [k + 1 for k in lengths])
    per_row = [claim.sampling for claim, k in zip(claims, lengths, strict=True) for _ in range(k + 1)]
    p = probabilities(logits, RowParams.of(per_row, logits.device))  # [R, V]
    accepted = _accepted(p, claims, starts)
    ends = torch.tensor([int(start) + a for start, a in zip(starts, accepted, strict=False)])  # [B]
    final = p[ends]  # [B, V]: the row at which each round ends
    for i, claim in enumerate(claims):
        if accepted[i] < lengths[i]:
            _subtract_draft(final[i], claim.draft, accepted[i])
    coins = torch.from_numpy(_uniforms_at(claims, accepted, Purpose.SAMPLE))
    tokens = draw(final, coins).tolist()
    return [Verdict(a, min(a + 1, k), token) for a, k, token in zip(accepted, lengths, tokens, strict=True)]


def _accepted(p: Tensor, claims: Sequence[Claim], starts: NDArray[np.int64]) -> list[int]:
    """Length of each request's accepted prefix. p: [R, V]."""
    drafted = [(i, j) for i, claim in enumerate(claims) for j in range(len(claim.draft.tokens))]
    if not drafted:
        return [0] * len(claims)
    rows = torch.tensor([int(starts[i]) + j for i, j in drafted])
    tokens = torch.tensor([claims[i].draft.tokens[j] for i, j in drafted])
    p_token = p[rows, tokens].double().tolist()
    seeds = np.array([claims[i].sampling.seed for i, _ in drafted], dtype=np.uint64)
    positions = np.array([claims[i].position + j for i, j in drafted], dtype=np.int64)
    coins = uniforms(seeds, positions, Purpose.ACCEPT)
    accepted = [0] * len(claims)
    for (i, j), token_p, coin in zip(drafted, p_token, coins, strict=True):
        q_token = claims[i].draft.probability(j)
        # coin < p/q, written without the division so that q = 0 rejects
        if accepted[i] == j and q_token > 0 and coin * q_token < token_p:
            accepted[i] = j + 1
    return accepted


def _subtract_draft(p: Tensor, draft: Draft, at: int) -> None:
    """In place: max(p - q, 0) for the rejected position, not normalised. p: [V]."""
    if draft.probs is None:
        p[draft.tokens[at]] = 0.0
        return
    rest = (p - draft.probs[at]).clamp_(min=0.0)
    if rest.sum() > 0:  # else p = q to the last bit, and p itself is right
        p.copy_(rest)


def _uniforms_at(claims: Sequence[Claim], offsets: Sequence[int], purpose: Purpose) -> NDArray[np.float64]:
    seeds = np.array([claim.sampling.seed for claim in claims], dtype=np.uint64)
    positions = np.array([c.position + o for c, o in zip(claims, offsets, strict=True)], dtype=np.int64)
    return uniforms(seeds, positions, purpose)
