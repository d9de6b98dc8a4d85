"""Verification of chains, all requests of a step at once. The specification is `engine.verify.law`.

Rows are ragged: request i owns k_i + 1 rows of the target's logits, the last of which gives the bonus token.

    rows     | p0 p1 p2 | p0 | p0 p1 |        request 0 drafted 2, request 1 none, request 2 one
    drafts   | d0 d1    |    | d0    |
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.api import SamplingParams, TokenLogprob
from engine.draft.base import Draft
from engine.sampling.edits import Edits
from engine.sampling.logprobs import at_temperature, logprobs
from engine.sampling.processors import RowParams, probabilities
from engine.sampling.rng import Purpose, uniforms
from engine.sampling.rows import PLAIN, Row, edit
from engine.verify.best import best
from engine.verify.draw import draw

_NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Claim:
    """One request's share of a verify: what was drafted, and how its tokens are drawn."""

    draft: Draft
    sampling: SamplingParams
    prompt: Sequence[int]
    text: Sequence[int] = ()  # generated and committed before this round
    allowed: Tensor | None = None  # [k + 1, ceil(V / 32)] int32, what a grammar allows at each row
    edits: Edits | None = (
        None  # kept from round to round; None: made of the above, without the model's end tokens
    )

    @property
    def position(self) -> int:
        """Of the first token that this round commits, counted from the prompt's start."""
        return len(self.prompt) + len(self.text)

    def rows(self) -> list[Row]:
        """What each of the k + 1 rows follows."""
        drafted = self.draft.tokens
        edits = self.edits or Edits(self.sampling, self.prompt, text=self.text)
        if edits.idle and self.allowed is None:
            return [PLAIN] * (len(drafted) + 1)
        return [
            Row(edits, drafted[:j], None if self.allowed is None else self.allowed[j])
            for j in range(len(drafted) + 1)
        ]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification says about one request's draft."""

    accepted: int
    examined: int
    token: int  # recovered if examined > accepted, else bonus
    fault: str | None = None  # why nothing was decided
    refused: bool = False  # with a fault: it lies in what the request asks for
    logprobs: list[TokenLogprob] | None = None  # of the accepted tokens and the last one, if asked for


_NOT_NUMBERS = Verdict(0, 0, 0, "the model returned values that are not finite numbers")
_STUCK = Verdict(
    0,
    0,
    0,
    "no token is left to draw: what the request allows, bans, biases and its grammar exclude each other",
    refused=True,
)


def verify(logits: Tensor, claims: Sequence[Claim]) -> list[Verdict]:
    """Decide every request's round. logits: [sum(k_i + 1), V].

    A certain draft is kept while it is what the target says: its argmax at temperature 0, else the token that it draws
    with the random number of that position. So a seed's text does not depend on such drafts, rounding aside. A draft
    drawn from a law of its own goes through rejection sampling, which keeps more of it.
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
        p = _laws(logits, [(row, claims[i].sampling) for i in sampled for row in rows[i]])
        drawn = [i for i in sampled if claims[i].draft.probs is not None]
        verdicts = rejection(p, {i: claims[i] for i in drawn}, rows)
        _say(
            said,
            p,
            [(row, claims[i], j) for i in sampled if i not in verdicts for j, row in enumerate(rows[i])],
        )
    for row in stuck:
        said[row] = _NO_TOKEN
    for i, claim in enumerate(claims):
        if not all(finite[row] for row in rows[i]):
            verdicts[i] = _NOT_NUMBERS
        elif i not in verdicts:
            verdicts[i] = matching(claim.draft.tokens, [said[row] for row in rows[i]])
        if rows[i][verdicts[i].accepted] in stuck:
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
    kept = {i: [*claims[i].draft.tokens[: verdicts[i].accepted], verdicts[i].token] for i in asking}
    places = [(row, claims[i].sampling) for i in asking for row in rows[i][: len(kept[i])]]
    laws = at_temperature(logits[[row for row, _ in places]], [params for _, params in places])
    tokens = [token for i in asking for token in kept[i]]
    found = iter(logprobs(laws, tokens, [params.logprobs or 0 for _, params in places]))
    for i in asking:
        verdicts[i] = replace(verdicts[i], logprobs=list(islice(found, len(kept[i]))))


def matching(draft: Sequence[int], said: Sequence[int]) -> Verdict:
    """Keep a certain draft while it is what the target says. said: the target's own token at each of k+1 rows."""
    accepted = 0
    while accepted < len(draft) and draft[accepted] == said[accepted]:
        accepted += 1
    return Verdict(accepted, min(accepted + 1, len(draft)), said[accepted])


Laws = dict[int, Tensor]  # row -> p [V] float32


def rejection(p: Laws, claims: dict[int, Claim], rows: Sequence[range]) -> dict[int, Verdict]:
    """Rejection sampling for drafts that were drawn from laws of their own; verdicts by the claims' keys."""
    if not claims:
        return {}
    accepted = _accepted(p, claims, rows)
    final = []  # the law that each round's last token is drawn from, not normalised
    for i, claim in claims.items():
        at = accepted[i]
        law = p[rows[i][at]]
        final.append(law if at == len(claim.draft.tokens) else _residual(law, claim.draft, at))
    coins = _uniforms([(claim, accepted[i]) for i, claim in claims.items()], Purpose.SAMPLE)
    tokens = draw(torch.stack(final), torch.from_numpy(coins)).tolist()
    return {
        i: Verdict(accepted[i], min(accepted[i] + 1, len(claim.draft.tokens)), token)
        for (i, claim), token in zip(claims.items(), tokens, strict=True)
    }


def _accepted(p: Laws, claims: dict[int, Claim], rows: Sequence[range]) -> dict[int, int]:
    """Length of each claim's accepted prefix."""
    drafted = [(i, j) for i, claim in claims.items() for j in range(len(claim.draft.tokens))]
    coins = _uniforms([(claims[i], j) for i, j in drafted], Purpose.ACCEPT)
    accepted = dict.fromkeys(claims, 0)
    for (i, j), coin in zip(drafted, coins, strict=True):
        if accepted[i] != j:
            continue  # behind the first rejection: not examined
        token = claims[i].draft.tokens[j]
        p_token, q_token = float(p[rows[i][j]][token]), float(_law_of(claims[i].draft, j)[token])
        # coin < p/q, written without the division so that q = 0 rejects
        if q_token > 0 and coin * q_token < p_token:
            accepted[i] = j + 1
    return accepted


def _residual(p: Tensor, draft: Draft, at: int) -> Tensor:
    """max(p - q, 0), not normalised: [V]."""
    rest = (p - _law_of(draft, at)).clamp_(min=0.0)
    return rest if rest.sum() > 0 else p  # p = q to the last bit: any law of the recovered token is right


def _law_of(draft: Draft, at: int) -> Tensor:
    """q at a drafted position: [V]."""
    assert draft.probs is not None, "certain drafts are decided by matching"
    return draft.probs[at]


def _laws(logits: Tensor, wanted: Sequence[tuple[int, SamplingParams]]) -> Laws:
    """The processed laws of some rows of the logits."""
    rows = torch.tensor([row for row, _ in wanted])
    p = probabilities(logits[rows], RowParams.of([params for _, params in wanted], logits.device))
    return {row: law for (row, _), law in zip(wanted, p, strict=True)}


def _say(said: list[int], p: Laws, wanted: Sequence[tuple[int, Claim, int]]) -> None:
    """Replace the argmax of sampled rows by the token that the target draws at each, in place."""
    if not wanted:
        return
    coins = torch.from_numpy(_uniforms([(claim, j) for _, claim, j in wanted], Purpose.SAMPLE))
    tokens = draw(torch.stack([p[row] for row, _, _ in wanted]), coins).tolist()
    for (row, _, _), token in zip(wanted, tokens, strict=True):
        said[row] = token


def _uniforms(places: Sequence[tuple[Claim, int]], purpose: Purpose) -> NDArray[np.float64]:
    """One uniform for each (claim, offset from its position)."""
    seeds = np.array([claim.sampling.seed for claim, _ in places], dtype=np.uint64)
    positions = np.array([claim.position + offset for claim, offset in places], dtype=np.int64)
    return uniforms(seeds, positions, purpose)
