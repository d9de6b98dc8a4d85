"""Verification of all requests of a step at once. The specification is `engine.verify.law` and its neighbours.

Rows are ragged: request i owns k_i + 1 rows of the target's logits, the root's and one for each node of its draft. The
row of a node whose path is accepted, and that has no accepted child, gives the round's last token.

    rows     | p0 p1 p2 | p0 | p0 p1 |        request 0 drafted 2, request 1 none, request 2 one
    drafts   |    d0 d1 |    |    d0 |
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Final

import numpy as np
import torch
from torch import Tensor

from engine.api import SamplingParams, Verification
from engine.draft.base import Draft
from engine.draft.shape import ROOT, depths
from engine.sampling.logprobs import at_temperature, logprobs
from engine.sampling.processors import RowParams, probabilities
from engine.sampling.rng import Purpose
from engine.sampling.rows import edit
from engine.transfer import send
from engine.verify.best import best
from engine.verify.claim import Claim, Verdict, draws, verdict
from engine.verify.draw import draw
from engine.verify.drawn import Drawn, verify_blocks, verify_tokens

_NO_TOKEN: Final = -1
_NOT_NUMBERS: Final = Verdict((), 0, 0, "the model returned values that are not finite numbers")
_STUCK: Final = Verdict(
    (),
    0,
    0,
    "no token is left to draw: what the request allows, bans, biases and its grammar exclude each other",
    refused=True,
)


def verify(logits: Tensor, claims: Sequence[Claim], rule: Verification = "block") -> list[Verdict]:
    """Decide every request's round. logits: [sum(k_i + 1), V].

    A certain draft is kept while it is what the target says: its argmax at temperature 0, else the token that it draws
    with the random number of that position. So a seed's text does not depend on such drafts, rounding aside. A draft
    drawn from laws of its own goes through rejection sampling, which keeps more of it: chains by `rule`, trees always
    token by token.
    """
    starts = np.cumsum([0] + [len(claim.draft.tokens) + 1 for claim in claims])
    rows = [range(int(start), int(end)) for start, end in pairwise(starts)]
    tokens, numbers = best(logits)
    finite = numbers.tolist()  # before edits: a ban is no fault
    edited = edit(logits, [row for claim in claims for row in claim.rows()])
    stuck = set() if edited is logits else _stuck(edited)
    said = (tokens if edited is logits else best(edited)[0]).tolist()
    logits = edited
    sampled = [
        i for i, c in enumerate(claims) if c.sampling.temperature > 0 and all(finite[r] for r in rows[i])
    ]
    verdicts: dict[int, Verdict] = {}
    if sampled:
        p, first = _laws(logits, {i: rows[i] for i in sampled}, [claims[i].sampling for i in sampled])
        verdicts = _drawn(p, {i: Drawn(claims[i], first[i]) for i in sampled}, rule)
        certain = [i for i in sampled if i not in verdicts]
        _say(said, p, [(rows[i], Drawn(claims[i], first[i])) for i in certain])
    for row in stuck:
        said[row] = _NO_TOKEN
    for i, claim in enumerate(claims):
        if not all(finite[row] for row in rows[i]):
            verdicts[i] = _NOT_NUMBERS
        elif i not in verdicts:
            verdicts[i] = matching(claim.draft, [said[row] for row in rows[i]])
        if rows[i][verdicts[i].rows[-1]] in stuck:
            verdicts[i] = _STUCK
    _add_logprobs(logits, claims, verdicts, rows)
    return [verdicts[i] for i in range(len(claims))]


def _stuck(edited: Tensor) -> set[int]:
    """Rows [R, V] that the edits left nothing of. Rejection ends there too: a law that is no number keeps no draft."""
    return set((edited.amax(dim=-1) == -torch.inf).nonzero().squeeze(1).tolist())


def _add_logprobs(
    logits: Tensor, claims: Sequence[Claim], verdicts: dict[int, Verdict], rows: Sequence[range]
) -> None:
    """For the claims that ask, at the rows of the tokens that the round commits: edited, not cut."""
    asking = [i for i, c in enumerate(claims) if c.sampling.logprobs is not None and not verdicts[i].fault]
    if not asking:
        return
    places = [(rows[i][row], claims[i].sampling) for i in asking for row in verdicts[i].rows]
    laws = at_temperature(logits[[row for row, _ in places]], [params for _, params in places])
    tokens = [token for i in asking for token in verdicts[i].tokens(claims[i].draft)]
    found = iter(logprobs(laws, tokens, [params.logprobs or 0 for _, params in places]))
    for i in asking:
        verdicts[i] = replace(verdicts[i], logprobs=list(islice(found, len(verdicts[i].rows))))


def matching(draft: Draft, said: Sequence[int]) -> Verdict:
    """Go down a certain draft while a child is what the target says. said: the target's own token at each row."""
    child: dict[tuple[int, int], int] = {}
    for node, edge in enumerate(zip(draft.shape, draft.tokens, strict=True)):
        child.setdefault(edge, node)
    path: list[int] = []
    while True:
        node = path[-1] if path else ROOT
        chosen = child.get((node, said[node + 1]))
        if chosen is None:
            return verdict(draft, path, said[node + 1])
        path.append(chosen)


def _laws(
    logits: Tensor, rows: dict[int, range], params: Sequence[SamplingParams]
) -> tuple[Tensor, dict[int, int]]:
    """The processed laws of some claims' rows, [R, V], and the place of each one's first."""
    first: dict[int, int] = {}
    wanted: list[int] = []
    own: list[SamplingParams] = []
    for (i, span), sampling in zip(rows.items(), params, strict=True):
        first[i] = len(wanted)
        wanted += span
        own += [sampling] * len(span)
    return probabilities(logits[send(wanted, logits.device)], RowParams.of(own, logits.device)), first


def _drawn(p: Tensor, sampled: dict[int, Drawn], rule: Verification) -> dict[int, Verdict]:
    """Verdicts on the drafts with laws."""
    drawn = {i: each for i, each in sampled.items() if each.claim.draft.probs is not None}
    blocks = [i for i, each in drawn.items() if rule == "block" and each.claim.draft.parents is None]
    others = [i for i in drawn if i not in blocks]
    found: dict[int, Verdict] = {}
    for indices, decide in ((blocks, verify_blocks), (others, verify_tokens)):
        if indices:
            found.update(zip(indices, decide(p, [drawn[i] for i in indices]), strict=True))
    return found


def _say(said: list[int], p: Tensor, certain: Sequence[tuple[range, Drawn]]) -> None:
    """Replace the argmax of sampled rows by the token that the target draws at each, in place."""
    if not certain:
        return
    places = [(claim, depth) for _, (claim, _) in certain for depth in (0, *depths(claim.draft.shape))]
    at = [first + j for rows, (_, first) in certain for j in range(len(rows))]
    coins = send(draws(places, Purpose.SAMPLE), p.device)
    tokens = draw(p[send(at, p.device)], coins).tolist()
    for row, token in zip((row for rows, _ in certain for row in rows), tokens, strict=True):
        said[row] = token
