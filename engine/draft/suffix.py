"""Suffix decoding: what followed the text's end elsewhere follows now, in the text itself or in others of its scope.

Source: Oliaro et al., "SuffixDecoding: extreme speculative decoding for emerging AI applications", 2024. As there, a
draft is at most so many times as long as the match behind it, and goes on only while enough of what was found agrees.
Two structures are asked, the text's own with its prompt and the history of what was generated before and beside it,
and the surer answer is taken.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, NamedTuple

from engine.api import DraftSettings
from engine.draft import match
from engine.draft.base import NO_DRAFT, Ask, Draft
from engine.draft.match import LONGEST
from engine.draft.occurrences import Occurrences, Text
from engine.draft.shape import ROOT
from engine.sequence import Sequence as Seq
from policies.base import Option

_FEWEST: Final = 0.2  # a draft ends where less than this share of the occurrences agrees with all of it
_CATCH_UP: Final = 2048  # tokens of a long prompt that are taken in at a time, some milliseconds
_TENANTS: Final = 1024  # names remembered: they come from users, who must not be able to fill the memory


class _Guess(NamedTuple):
    """What followed the text's end where it occurred before."""

    runs: list[list[int]]  # newest first, each as long as a draft may be
    tokens: list[int]  # the likeliest chain
    grade: int  # 0: no majority; then by the length of the match, one more if several occurrences agree

    @classmethod
    def of(cls, runs: list[list[int]], length: int) -> "_Guess":
        tokens, agreeing = likeliest(runs)
        if 2 * agreeing <= len(runs):
            grade = 0
        elif agreeing < len(runs):
            grade = 1
        else:
            grade = min(1 + match.grade(length) + (agreeing > 1), match.GRADES)
        return cls(runs, tokens, grade)

    @property
    def forks(self) -> bool:
        """Whether a tree could hold more than the chain."""
        return any(run[: len(self.tokens)] != self.tokens[: len(run)] for run in self.runs)

    def options(self) -> tuple[Option, ...]:
        """A chain; and a tree where the occurrences part."""
        k = len(self.tokens)
        widths = (1, 2) if self.forks else (1,)
        return tuple(Option(SuffixProposer.name, k, self.grade, width) for width in widths)


_NOTHING: Final = _Guess([], [], 0)


def likeliest(runs: Sequence[list[int]]) -> tuple[list[int], int]:
    """The chain that most runs go along with at each step, of equals the newest; and how many with its first token."""
    tokens: list[int] = []
    alive, agreeing = list(runs), 0
    while alive:
        branches = _branches(alive, len(tokens))
        if not branches:
            break
        token = max(branches, key=lambda token: len(branches[token]))
        alive = branches[token]
        if len(alive) < _FEWEST * len(runs):
            break
        agreeing = agreeing or len(alive)
        tokens.append(token)
    return tokens, agreeing


def grown(runs: Sequence[list[int]], nodes: int, levels: int) -> Draft:
    """The tree of so many nodes that the most runs pass through."""
    order = count()  # of equals the newest first
    open_ends = [(-len(on), next(order), ROOT, 1, token, on) for token, on in _branches(runs, 0).items()]
    heapify(open_ends)
    tokens: list[int] = []
    parents: list[int] = []
    while open_ends and len(tokens) < nodes:
        _, _, parent, level, token, on = heappop(open_ends)
        node = len(tokens)
        tokens.append(token)
        parents.append(parent)
        if level < levels:
            for child, through in _branches(on, level).items():
                heappush(open_ends, (-len(through), next(order), node, level + 1, child, through))
    return Draft.certain(tokens, parents)


def _branches(runs: Sequence[list[int]], level: int) -> dict[int, list[list[int]]]:
    """The runs by their token at a level; those that end before it are left out."""
    found: dict[int, list[list[int]]] = {}
    for run in runs:
        if len(run) > level:
            found.setdefault(run[level], []).append(run)
    return found


class _Lookup:
    """One text, in its own structure and in the history."""

    def __init__(self, sequence: Seq, history: Occurrences | None, scope: int) -> None:
        self._sequence = sequence
        self._own = Occurrences(len(sequence.tokens) + sequence.remaining)  # all that the text can become
        self._text = Text(0)
        self._history = history
        self._line = Text(scope)
        self._known = 0  # tokens taken in
        self._guess = _NOTHING
        self._guessed_at = 0  # the text's length then

    def guess(self, factor: float) -> _Guess:
        """The surer of what the text's own past and the history say. factor: drafted tokens per token matched."""
        if self._guessed_at != len(self._sequence.tokens):
            self._guessed_at = len(self._sequence.tokens)
            self._guess = self._look(factor) if self.catch_up(_CATCH_UP) else _NOTHING
        return self._guess

    def catch_up(self, most: int) -> bool:
        """Take in what was added to the text, at most so many tokens. Whether that was all."""
        tokens, start = self._sequence.tokens, self._known
        self._known = min(len(tokens), start + most)
        self._own.extend(self._text, tokens[start : self._known])
        self._remember(start, self._known)
        return self._known == len(tokens)

    def finish(self, most: int) -> None:
        """Let the history have what it lacks of the text, at most so many tokens: others wait for it."""
        generated = max(self._known, self._generated)
        self._remember(generated, generated + most)

    @property
    def _generated(self) -> int:
        """Where what the history keeps begins: with the prompt's end, to be found by."""
        return max(len(self._sequence.request.prompt) - LONGEST, 0)

    def _remember(self, start: int, end: int) -> None:
        if self._history is not None:
            self._history.extend(self._line, self._sequence.tokens[max(start, self._generated) : end])

    def _look(self, factor: float) -> _Guess:
        found = _found(self._own, self._text, factor)
        if self._history is None:
            return found
        return max(found, _found(self._history, self._line, factor), key=_worth)


def _found(structure: Occurrences, text: Text, factor: float) -> _Guess:
    found = structure.find(text)
    if found is None:
        return _NOTHING
    most = match.drafted(found.length, factor)
    return _Guess.of([structure.continuation(text, place, most) for place in found.places], found.length)


def _worth(guess: _Guess) -> tuple[int, int]:
    return guess.grade if guess.tokens else -1, len(guess.tokens)


class SuffixProposer:
    """Drafts by lookup in the text and in the history of its scope. Certain drafts: q is one-hot."""

    name = "suffix"
    cost = 0.005  # some dozen microseconds a round

    def __init__(self, settings: DraftSettings) -> None:
        self._factor = settings.match_factor
        self._across = settings.suffix_across
        shares = self._across != "request"
        self.history = Occurrences.of_bytes(settings.suffix_bytes) if shares else None
        self._scopes: dict[str, int] = {}  # by tenant, who came last at the end
        self._fresh = count(1)
        self._lookups: dict[str, _Lookup] = {}

    def options(self, sequence: Seq) -> tuple[Option, ...]:
        """See Proposer."""
        guess = self._lookup(sequence).guess(self._factor)
        return guess.options() if guess.tokens else ()

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """See Proposer."""
        return [self._draft(ask) for ask in asks]

    def forget(self, request: str) -> None:
        """See Proposer. What the text has more by now goes into the history: a round's tokens, or of a text that nobody
        looked into the first part.
        """
        lookup = self._lookups.pop(request, None)
        if lookup is not None:
            lookup.finish(_CATCH_UP)

    def _draft(self, ask: Ask) -> Draft:
        guess = self._lookup(ask.sequence).guess(self._factor)
        if not guess.tokens:
            return NO_DRAFT
        if ask.k > ask.levels:
            return grown(guess.runs, ask.k, ask.levels)
        return Draft(guess.tokens[: ask.k])

    def _lookup(self, sequence: Seq) -> _Lookup:
        lookup = self._lookups.get(sequence.id)
        if lookup is None:
            scope = self._scope(sequence.request.tenant)
            lookup = self._lookups[sequence.id] = _Lookup(sequence, self.history, scope)
        return lookup

    def _scope(self, tenant: str) -> int:
        """Where a tenant's texts are kept. One that has not come for long gets another number: what it had is not found
        any more, and no number is given to two.
        """
        if self._across == "all":
            return 0
        scope = self._scopes.pop(tenant, None) or next(self._fresh)
        self._scopes[tenant] = scope
        if len(self._scopes) > _TENANTS:
            del self._scopes[next(iter(self._scopes))]
        return scope
