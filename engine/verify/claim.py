"""What comes to verification, and what it says."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.api import SamplingParams, TokenLogprob
from engine.draft.base import Draft
from engine.draft.shape import ROOT
from engine.sampling.edits import Edits
from engine.sampling.rng import Purpose, uniforms
from engine.sampling.rows import PLAIN, Row
from engine.sequence import Sequence as Seq


@dataclass(frozen=True, slots=True)
class Claim:
    """One request's share of a verify: what was drafted, and how its tokens are drawn."""

    draft: Draft
    sampling: SamplingParams
    prompt: Sequence[int]
    text: Sequence[int] = ()  # generated and committed before this round
    allowed: Tensor | None = None  # [k + 1, ceil(V / 32)] int32, what a grammar allows at each row
    edits: Edits | None = None  # kept from round to round; None: made here, without the model's end tokens

    @classmethod
    def of(cls, sequence: Seq, draft: Draft) -> "Claim":
        """A running text's."""
        allowed = None if sequence.grammar is None else sequence.grammar.masks(draft.ways())
        prompt = sequence.request.prompt
        return cls(draft, sequence.sampling, prompt, sequence.text, allowed, edits=sequence.edits)

    @property
    def position(self) -> int:
        """Of the first token that this round commits, counted from the prompt's start."""
        return len(self.prompt) + len(self.text)

    def rows(self) -> list[Row]:
        """What each of the k + 1 rows follows: the root's, then each node's."""
        edits = self.edits or Edits(self.sampling, self.prompt, text=self.text)
        if edits.idle and self.allowed is None:
            return [PLAIN] * (len(self.draft.tokens) + 1)
        ways = self.draft.ways()
        allowed = [None] * len(ways) if self.allowed is None else self.allowed
        return [Row(edits, *each) for each in zip(ways, allowed, strict=True)]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification says about one request's draft."""

    path: tuple[int, ...]  # the accepted nodes, from the root's child down: 0, 1, ... of a chain
    examined: (
        int  # levels of the draft that were looked at: the accepted ones and the first at which all fell
    )
    token: int  # recovered if examined > accepted, else bonus
    fault: str | None = None  # why nothing was decided
    refused: bool = False  # with a fault: it lies in what the request asks for
    logprobs: list[TokenLogprob] | None = None  # of the accepted tokens and the last one, if asked for
    chances: tuple[float, ...] = ()  # see policies.base.Observation

    @property
    def accepted(self) -> int:
        """Drafted tokens that were kept."""
        return len(self.path)

    @property
    def rows(self) -> list[int]:
        """The rows of the claim that the committed tokens come from, in order."""
        return [0, *(node + 1 for node in self.path)]

    def tokens(self, draft: Draft) -> list[int]:
        """What is committed: the accepted tokens, and the last one."""
        return [*(draft.tokens[node] for node in self.path), self.token]


def verdict(draft: Draft, path: Sequence[int], token: int, chances: Sequence[float] = ()) -> Verdict:
    """A path of accepted nodes, and the token behind it. chances: by level, those that were not examined included."""
    last = path[-1] if path else ROOT
    went_on = last in draft.shape  # something hangs there: a further level was examined
    examined = len(path) + went_on
    return Verdict(tuple(path), examined, token, chances=tuple(chances[:examined]))


def draws(
    places: Sequence[tuple[Claim, int]], purpose: Purpose, indices: Sequence[int] | None = None
) -> NDArray[np.float64]:
    """One uniform for each (claim, offset from its position)."""
    seeds = np.array([claim.sampling.seed for claim, _ in places], dtype=np.uint64)
    positions = np.array([claim.position + offset for claim, offset in places], dtype=np.int64)
    return uniforms(seeds, positions, purpose, None if indices is None else np.array(indices, dtype=np.int64))
