"""Where the last tokens of a text occurred before, and what followed there: the suffix structure behind lookups.

A ring of places, one for each token of texts that grow side by side. A place knows its token, its neighbours in its
own text and, for each of a few lengths, the place before it where the same run of so many tokens ended (hash chains,
as Ziv-Lempel coders have them):

    place     1  2  3  4  5  6  7
    token     a  b  x  a  b  y  a           run "ab": head 5, and from there 2

So adding a token takes constant time, and so does evicting the oldest one: the ring is written over, and a link to what
is gone is seen to be too old. Memory is fixed when the ring is made.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from engine.draft.match import LONGEST

_RUNS: Final = (
    2,
    4,
    8,
)  # lengths that have chains; a match of another length is found by the next shorter one
_MOST: Final = 8  # occurrences looked at, the newest ones: shares in eighths are fine enough
_HOPS: Final = 64  # along a chain, in which runs of other texts and of equal hash lie too
PLACE_BYTES: Final = 4 + 8 * (3 + 2 * len(_RUNS))
"""Memory of a token."""


class Text:
    """A text in a ring, of which more may come."""

    __slots__ = ("_halves", "end", "recent", "runs", "scope")

    def __init__(self, scope: int) -> None:
        self.scope = scope
        self.end = 0  # place of its last token
        self.recent: list[int] = []  # its last LONGEST tokens
        self.runs: list[int] = []  # hashes of its last runs, by length; none of those longer than the text
        self._halves: list[list[int]] = [[] for _ in _RUNS]  # what the next ones are made of

    def grow(self, token: int, place: int) -> None:
        """Take in the next token. The hash of a run is made of those of its halves, so this takes constant time."""
        self.end = place
        self.recent.append(token)
        del self.recent[:-LONGEST]
        self.runs.clear()
        run = hash((self.scope, token))
        for length, halves in zip(_RUNS, self._halves, strict=True):
            halves.append(run)
            if len(halves) <= length // 2:
                return
            run = hash((halves.pop(0), run))
            self.runs.append(run)


class Match(NamedTuple):
    """The longest run of a text's last tokens that occurred before in its scope."""

    length: int
    places: list[int]
    """Where it ended, newest first; each is followed by something."""


class Occurrences:
    """Texts in scopes: what is found for a text lies in its own scope, whatever else the ring holds."""

    def __init__(self, capacity: int) -> None:
        """capacity: tokens kept, the newest ones."""
        assert capacity > 0
        self.capacity = capacity
        self._written = 0  # places are numbered from 1 and not reused: the older one is the smaller
        self._tokens = np.zeros(capacity, dtype=np.int32).data
        self._scopes, self._before, self._after = (_places(capacity) for _ in range(3))
        # by length: of each place the one before it with the same run; of each hash the newest place
        self._links = [_places(capacity) for _ in _RUNS]
        self._heads = [_places(capacity) for _ in _RUNS]

    @classmethod
    def of_bytes(cls, size: int) -> "Occurrences":
        """As many tokens as fit into so many bytes, one at least."""
        return cls(max(1, size // PLACE_BYTES))

    @property
    def nbytes(self) -> int:
        """Bytes held, used or not yet."""
        own = (self._tokens, self._scopes, self._before, self._after)
        return sum(view.nbytes for view in (*own, *self._links, *self._heads))

    def extend(self, text: Text, tokens: Sequence[int]) -> None:
        """Append to a text, in constant time a token. What is older than the capacity is gone."""
        capacity, before, after = self.capacity, self._before, self._after
        for token in tokens:
            self._written = place = self._written + 1
            at = place % capacity
            self._tokens[at], self._scopes[at] = token, text.scope
            before[at], after[at] = text.end, 0
            if text.end > place - capacity:
                after[text.end % capacity] = place
            text.grow(token, place)
            for run, links, heads in zip(text.runs, self._links, self._heads, strict=False):
                slot = run % capacity
                links[at], heads[slot] = heads[slot], place

    def find(self, text: Text) -> Match | None:
        """The longest match of a text's end, if there is one of two tokens at least."""
        for level in reversed(range(len(text.runs))):
            found = self._matches(level, text)
            if found:
                longest = max(length for length, _ in found)
                return Match(longest, [place for length, place in found if length == longest])
        return None

    def continuation(self, text: Text, place: int, most: int) -> list[int]:
        """Up to `most` tokens that followed a place. Past the text's own end it reads on in what it has just read, so
        that a loop of any period goes on.
        """
        capacity, after, read = self.capacity, self._after, self._tokens
        tokens: list[int] = []
        while len(tokens) < most and (following := after[place % capacity]):
            place = following
            tokens.append(read[place % capacity])
        if place == text.end:
            period = len(tokens)
            tokens += [tokens[i % period] for i in range(period, most)]
        return tokens

    def _matches(self, level: int, text: Text) -> list[tuple[int, int]]:
        """(length, place) of the newest places of the text's scope that match in as many tokens as the level's."""
        capacity, oldest = self.capacity, max(self._written - self.capacity, 0)
        links, place = self._links[level], self._heads[level][text.runs[level] % capacity]
        found: list[tuple[int, int]] = []
        for _ in range(_HOPS):
            if place <= oldest or len(found) == _MOST:
                break
            at = place % capacity
            if self._after[at] and self._scopes[at] == text.scope:
                length = self._agreement(text, place, oldest)
                if length >= _RUNS[level]:
                    found.append((length, place))
            place = links[at]
        return found

    def _agreement(self, text: Text, place: int, oldest: int) -> int:
        """How many of the text's last tokens stand at a place."""
        capacity, tokens, before, length = self.capacity, self._tokens, self._before, 0
        for token in reversed(text.recent):
            at = place % capacity
            if place <= oldest or tokens[at] != token:
                break
            length += 1
            place = before[at]
        return length


def _places(capacity: int) -> memoryview:
    """Zeros, of which the system hands out the memory when it is first written."""
    return np.zeros(capacity, dtype=np.int64).data
