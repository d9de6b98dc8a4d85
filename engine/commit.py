"""How much of a verified round becomes text: the first end of sequence, stop string, end of the grammar or length
limit cuts it.
"""

from collections.abc import Sequence as Tokens
from typing import Final, NamedTuple

from engine.api import FinishReason, TokenLogprob
from engine.draft.base import Draft
from engine.grammar.state import Standing
from engine.sequence import Sequence
from engine.verify.claim import Verdict

_STUCK: Final = "the text came to a point where its grammar allows no token, or is too complex to follow"


class Ending(NamedTuple):
    """What one round adds to its sequence, and whether that ends it."""

    tokens: list[int]
    examined: int  # draft positions examined before the cut: what lies behind it is no evidence
    accepted: int
    finish: FinishReason | None = None
    error: str | None = None
    refused: bool = False  # with an error: see Output
    logprobs: list[TokenLogprob] | None = None  # one for each of `tokens`, if asked for
    chances: tuple[float, ...] = ()  # see policies.base.Observation

    @property
    def distrusts(self) -> bool:
        """Whether the model failed, and not what the request asks for: its keys and values may be no numbers either."""
        return self.finish == "error" and not self.refused and not self.tokens


def settle(sequence: Sequence, draft: Draft, verdict: Verdict) -> Ending:
    """Cut a verdict's tokens at the sequence's end. Feeds the sequence's stop-string finder; changes nothing else."""
    if verdict.fault is not None:
        return Ending([], 0, 0, "error", verdict.fault, refused=verdict.refused)
    tokens = verdict.tokens(draft)
    kept, finish = _cut(sequence, tokens)
    error = _STUCK if finish == "error" else None
    logprobs = None if verdict.logprobs is None else verdict.logprobs[:kept]
    examined, accepted = verdict.examined, verdict.accepted
    if kept < len(tokens):
        examined, accepted = min(kept, examined), min(kept, accepted)
    chances = verdict.chances[:examined]
    return Ending(tokens[:kept], examined, accepted, finish, error, logprobs=logprobs, chances=chances)


def moves(sequence: Sequence, verdict: Verdict) -> list[tuple[int, int]]:
    """From which slot to which an accepted path's keys and values go, so that it follows the text; a chain's lie there.

    To be asked before the verdict's tokens are added to the sequence.
    """
    first = len(sequence.tokens)  # the place of node 0, and of the path's first
    places = [(first + node, first + depth) for depth, node in enumerate(verdict.path)]
    slot = sequence.table.slot
    return [(slot(source), slot(target)) for source, target in places if source != target]


def _cut(sequence: Sequence, tokens: Tokens[int]) -> tuple[int, FinishReason | None]:
    """(how many tokens stay, why the sequence ends with them)."""
    for kept, token in enumerate(tokens, start=1):
        if token in sequence.ends:
            return kept, "stop"
        if sequence.stream is not None:
            sequence.stream.push([token])
            if sequence.stream.stopped:
                return kept, "stop"
        standing = (
            Standing.OPEN if sequence.grammar is None else sequence.grammar.spot(tokens[:kept]).standing
        )
        if standing is Standing.ENDED:
            return kept, "stop"
        if kept == sequence.remaining:
            return kept, "length"
        if standing is Standing.STUCK:
            return kept, "error"
    return len(tokens), None
