"""Where one text stands in its grammar.

root    the committed text
path    drafted tokens after it; a tree of drafts is as many paths as it has nodes
spot    what may follow a path

A spot is a pure function of text and path, so that speculation changes nothing: the matcher is rolled back to the
fork and led along the other path, and what was once found out about a path is kept until the round ends.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

import torch
from llguidance import LLMatcher
from torch import Tensor

from engine.grammar.vocabulary import GrammarVocabulary, members


class Standing(Enum):
    """Whether a text can go on."""

    OPEN = auto()
    ENDED = auto()  # only the end of the sequence may follow: the text is whole
    STUCK = auto()  # nothing may follow, not even the end


class Spot(NamedTuple):
    """What may follow a path."""

    standing: Standing
    allowed: (
        Tensor | None
    )  # [ceil(V / 32)] int32, bit t: token t may follow; None where the text cannot go on
    only: int | None = None  # the one token that may follow, where it is one and the text goes on with it


_ENDED = Spot(Standing.ENDED, None)
_STUCK = Spot(Standing.STUCK, None)


class GrammarState:
    """Of one text. Everything but `commit` leaves it as it was."""

    def __init__(self, start: LLMatcher, vocabulary: GrammarVocabulary, *, ignore_eos: bool) -> None:
        """start: at the beginning of the grammar, shared and left alone.

        ignore_eos: the end of the sequence is allowed only where nothing else is.
        """
        self._start = start
        self._everything = torch.full((len(vocabulary.ends),), -1, dtype=torch.int32)
        self._vocabulary = vocabulary
        self._ignore_eos = ignore_eos
        self._matcher = start.deep_copy()
        self._text: list[int] = []
        self._path: list[int] = []  # consumed by the matcher beyond the text
        self._spots: dict[tuple[int, ...], Spot] = {}

    @property
    def end_tokens(self) -> frozenset[int]:
        """Those that end the text, where the grammar allows an end."""
        return self._vocabulary.end_tokens

    def spot(self, path: Sequence[int] = ()) -> Spot:
        """What may follow a path of tokens each of which was allowed; of any other nothing may follow."""
        key = tuple(path)
        found = self._spots.get(key)
        if found is None:
            found = self._spots[key] = self._find(key)
        return found

    def allows(self, path: Sequence[int], token: int) -> bool:
        """Whether a token may follow a path."""
        allowed = self.spot(path).allowed
        return allowed is not None and bool(int(allowed[token // 32]) >> (token % 32) & 1)

    def forced(self, limit: int) -> list[int]:
        """The next tokens that there is no choice about, at most `limit`, as far as the text goes on after them."""
        path: list[int] = []
        while len(path) < limit:
            only = self.spot(path).only
            if only is None or self.spot([*path, only]).standing is not Standing.OPEN:
                break
            path.append(only)
        return path

    def masks(self, paths: Sequence[Sequence[int]]) -> Tensor:
        """[len(paths), ceil(V / 32)] int32: what may follow each path; all where it is of no account."""
        spots = [self.spot(path) for path in paths]
        return torch.stack([self._everything if s.allowed is None else s.allowed for s in spots])

    def commit(self, tokens: Sequence[int]) -> None:
        """Take tokens into the text: a path after which it goes on."""
        followed = self._go(tokens)
        assert followed, f"the grammar does not allow {tokens} after {self._text}"
        self._text += tokens
        self._path = []
        taken, size = tuple(tokens), len(tokens)
        self._spots = {path[size:]: s for path, s in self._spots.items() if path[:size] == taken}

    def _find(self, path: Sequence[int]) -> Spot:
        if path and path[-1] in self.end_tokens:
            return _ENDED
        if not self._go(path):
            return _STUCK
        allowed = self._vocabulary.allowed(self._matcher)
        if self._matcher.is_error():
            self._restart()
            return _STUCK
        onward = allowed & ~self._vocabulary.ends
        if not onward.any():
            return _ENDED if allowed.any() else _STUCK
        allowed = onward if self._ignore_eos else allowed
        few = members(allowed, 2)
        return Spot(Standing.OPEN, torch.from_numpy(allowed), few[0] if len(few) == 1 else None)

    def _go(self, path: Sequence[int]) -> bool:
        """Lead the matcher along a path, from the fork with the one it is on. False where the grammar forbids it."""
        fork = next((j for j, (a, b) in enumerate(zip(path, self._path, strict=False)) if a != b), None)
        shared = min(len(path), len(self._path)) if fork is None else fork
        self._matcher.rollback(len(self._path) - shared)
        rest = list(path[shared:])
        taken = self._matcher.try_consume_tokens(rest)
        self._path = [*path[:shared], *rest[:taken]]
        if self._matcher.is_error():
            self._restart()
            return False
        return taken == len(rest)

    def _restart(self) -> None:
        """A matcher that met a limit of its own stays in error; the text, which did not, needs a new one."""
        self._matcher = self._start.deep_copy()
        self._matcher.consume_tokens(self._text)
        self._path = []
