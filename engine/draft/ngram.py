"""Prompt lookup: the text so far often says what comes next.

Find the longest earlier match of the text's last tokens, the most recent one among equals, and guess that what
followed then follows now. Source: Saxena, "Prompt lookup decoding", 2023.
"""

from collections.abc import Sequence
from functools import cache

from engine.api import DraftSettings
from engine.draft.base import NO_DRAFT, Ask, Draft
from engine.draft.match import LONGEST, drafted, grade
from engine.sequence import Sequence as Seq
from policies.base import Option


class NgramProposer:
    """Drafts by lookup in each sequence's own tokens. Certain drafts: q is one-hot."""

    name = "ngram"
    cost = 0.005  # some dictionary look-ups a round

    def __init__(self, settings: DraftSettings) -> None:
        self._lengths = range(settings.ngram_max, settings.ngram_min - 1, -1)
        self._factor = settings.match_factor
        self._indexes: dict[str, _Index] = {}

    def options(self, sequence: Seq) -> tuple[Option, ...]:
        """See Proposer. The longer the match, the longer the draft, and the better its grade."""
        follows = self._follows(sequence)
        return () if follows is None else (_option(matched(sequence.tokens, follows), self._factor),)

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """See Proposer."""
        return [self._draft(ask) for ask in asks]

    def forget(self, request: str) -> None:
        """See Proposer."""
        self._indexes.pop(request, None)

    def _draft(self, ask: Ask) -> Draft:
        follows = self._follows(ask.sequence)
        return NO_DRAFT if follows is None else Draft(_read_on(ask.sequence.tokens, follows, ask.levels))

    def _follows(self, sequence: Seq) -> int | None:
        """See _Index.continuation."""
        return self._indexes.setdefault(sequence.id, _Index(self._lengths)).continuation(sequence.tokens)


@cache
def _option(length: int, factor: float) -> Option:
    return Option(NgramProposer.name, drafted(length, factor), grade(length))


def matched(tokens: Sequence[int], follows: int) -> int:
    """How many tokens before a position are those at the text's end, as far as it matters."""
    most, length = min(follows, LONGEST), 0
    while length < most and tokens[follows - 1 - length] == tokens[-1 - length]:
        length += 1
    return length


def _read_on(tokens: Sequence[int], start: int, k: int) -> list[int]:
    """k tokens from `start`; past the end it reads its own guesses, so a loop of any period goes on."""
    draft: list[int] = []
    for position in range(start, start + k):
        draft.append(tokens[position] if position < len(tokens) else draft[position - len(tokens)])
    return draft


class _Index:
    """Where each n-gram of one text was last followed by something."""

    def __init__(self, lengths: range) -> None:
        self._lengths = lengths
        self._follows: dict[tuple[int, ...], int] = {}
        self._indexed = 0  # n-grams that end before this position are in the index

    def continuation(self, tokens: Sequence[int]) -> int | None:
        """Position after the best earlier match of the text's end, or None."""
        self._catch_up(tokens)
        for n in self._lengths:
            if n < len(tokens):
                follows = self._follows.get(tuple(tokens[-n:]))
                if follows is not None:
                    return follows
        return None

    def _catch_up(self, tokens: Sequence[int]) -> None:
        """Index what was added since the last look, except the text's end itself: it is what is looked for."""
        for end in range(max(self._indexed, 1), len(tokens)):
            for n in self._lengths:
                if n <= end:
                    self._follows[tuple(tokens[end - n : end])] = end
        self._indexed = len(tokens)
