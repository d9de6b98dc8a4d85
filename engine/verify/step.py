"""Verification of all requests of a step at once. The specification is `engine.verify.law` and its neighbours.

Rows are ragged: request i owns k_i + 1 rows of the target's logits, the root's and one for each node of its draft. The
row of a node whose path is accepted, and that has no accepted child, gives the round's last token.

    rows     | p0 p1 p2 | p0 | p0 p1 |        request 0 drafted 2, request 1 none, request 2 one
    drafts   |    d0 d1 |    |    d0 |
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, islice
from typing import Final, NamedTuple

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
    rows = _rows(claims)
    said, finite = best(logits)  # before edits: a ban is no fault
    edited = edit(logits, [row for claim in claims for row in claim.rows()])
    said, left = (said, finite) if edited is logits else best(edited)
    sampled = [i for i, claim in enumerate(claims) if claim.sampling.temperature > 0]
    p, first = _laws(edited, {i: rows[i] for i in sampled}, [claims[i].sampling for i in sampled])
    drawn = {i: Drawn(claims[i], first[i]) for i in sampled}
    _say(said, p, [(rows[i], drawn[i]) for i in sampled if claims[i].draft.probs is None])
    told = _Told.read(said, finite, left)
    numbers = [all(told.finite[row] for row in own) for own in rows]
    verdicts = _drawn(p, {i: drawn[i] for i in sampled if numbers[i]}, rule)
    for i, claim in enumerate(claims):
        if not numbers[i]:
            verdicts[i] = _NOT_NUMBERS
        elif i not in verdicts:
            verdicts[i] = matching(claim.draft, [told.said[row] for row in rows[i]])
        if told.stuck[rows[i][verdicts[i].rows[-1]]]:
            verdicts[i] = _STUCK
    _add_logprobs(edited, claims, verdicts, rows)
    return [verdicts[i] for i in range(len(claims))]


def _rows(claims: Sequence[Claim]) -> list[range]:
    """Of the logits, by claim."""
    ends = accumulate(len(claim.draft.tokens) + 1 for claim in claims)
    return [range(end - len(claim.draft.tokens) - 1, end) for claim, end in zip(claims, ends, strict=True)]


class _Told(NamedTuple):
    """What the device says of each row [R]. Read at once: every look at it waits for all that was launched."""

    said: list[int]  # the target's own token; none if the row is stuck
    finite: list[int]
    stuck: list[
        int
    ]  # the edits left nothing of it. Rejection ends there too: a law that is no number keeps no draft

    @classmethod
    def read(cls, said: Tensor, finite: Tensor, left: Tensor) -> "_Told":
        """said: [R] int64; finite, left: [R] bool, whether a row's best logit is finite, before the edits and after."""
        stuck = finite & ~left
        return cls(*torch.stack([said.masked_fill(stuck, _NO_TOKEN), finite, stuck]).tolist())


def _add_logprobs(
    logits: Tensor, claims: Sequence[Claim], verdicts: dict[int, Verdict], rows: Sequence[range]
) -> None:
    """For the claims that ask, at the rows of the tokens that the round commits: edited, not cut."""
    asking = [i for i, c in enumerate(claims) if c.sampling.logprobs is not None and not verdicts[i].fault]
    if not asking:
        return
    places = [(rows[i][row], claims[i].sampling) for i in asking for row in verdicts[i].rows]
    asked = logits[send([row for row, _ in places], logits.device)]
    laws = at_temperature(asked, [params for _, params in places])
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
    """The processed laws of some claims' rows, [N, V], and the place of each one's first."""
    first: dict[int, int] = {}
    wanted: list[int] = []
    own: list[SamplingParams] = []
    for (i, span), sampling in zip(rows.items(), params, strict=True):
        first[i] = len(wanted)
        wanted += span
        own += [sampling] * len(span)
    if not wanted:
        return logits[:0], first
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


def _say(said: Tensor, p: Tensor, certain: Sequence[tuple[range, Drawn]]) -> None:
    """Replace the argmax of these claims' rows by the token that the target draws at each, in place. said: [R]."""
    if not certain:
        return
    places = [(claim, depth) for _, (claim, _) in certain for depth in (0, *depths(claim.draft.shape))]
    at = [first + j for rows, (_, first) in certain for j in range(len(rows))]
    coins = send(draws(places, Purpose.SAMPLE), p.device)
    drawn = draw(p[send(at, p.device)], coins)
    said.index_copy_(0, send([row for rows, _ in certain for row in rows], said.device), drawn)
