"""How much of a verified round becomes text: the first end of sequence, stop string or length limit cuts it."""

from collections.abc import Sequence as Tokens
from typing import NamedTuple

from engine.api import FinishReason, TokenLogprob
from engine.draft.base import Draft
from engine.sequence import Sequence
from engine.verify.chain import Verdict


class Ending(NamedTuple):
    """What one round adds to its sequence, and whether that ends it."""

    tokens: list[int]
    examined: int  # draft positions examined before the cut: what lies behind it is no evidence
    accepted: int
    finish: FinishReason | None = None
    error: str | None = None
    refused: bool = False  # with an error: see Output
    logprobs: list[TokenLogprob] | None = None  # one for each of `tokens`, if asked for


def settle(sequence: Sequence, draft: Draft, verdict: Verdict) -> Ending:
    """Cut a verdict's tokens at the sequence's end. Feeds the sequence's stop-string finder; changes nothing else."""
    if verdict.fault is not None:
        return Ending([], 0, 0, "error", verdict.fault, refused=verdict.refused)
    tokens = [*draft.tokens[: verdict.accepted], verdict.token]
    kept, finish = _cut(sequence, tokens)
    logprobs = None if verdict.logprobs is None else verdict.logprobs[:kept]
    if kept < len(tokens):
        examined, accepted = min(kept, verdict.examined), min(kept, verdict.accepted)
        return Ending(tokens[:kept], examined, accepted, finish, logprobs=logprobs)
    return Ending(tokens, verdict.examined, verdict.accepted, finish, logprobs=logprobs)


def _cut(sequence: Sequence, tokens: Tokens[int]) -> tuple[int, FinishReason | None]:
    """(how many tokens stay, why the sequence ends with them)."""
    for kept, token in enumerate(tokens, start=1):
        if token in sequence.ends:
            return kept, "stop"
        if sequence.stream is not None:
            sequence.stream.push([token])
            if sequence.stream.stopped:
                return kept, "stop"
        if kept == sequence.remaining:
            return kept, "length"
    return len(tokens), None
