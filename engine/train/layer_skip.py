"""The layers that layer skip leaves out, searched on the user's own prompts.

Source of the objective: Zhang et al., "Draft & verify", ACL 2024. A set is worth the tokens a second that drafting with
it is expected to bring: its acceptance on texts that the target wrote, against the cost of the layers that stay. The
acceptance of a set is that of first positions, in one forward over the texts (`engine.train.agreement`); only the best
set is followed further, on texts that the search did not see.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from engine.model.loader import LoadedModel
from engine.train.agreement import Counts, Excerpt, Heard, count
from engine.train.skip_search import Progress, Skip, search
from engine.train.skip_worth import Best, Costs, best

_POSITIONS: Final = 6
_WIDTH: Final = 2  # of the beam


class Tried(msgspec.Struct, frozen=True):
    """A set that was looked at: a line of the journal, by which a search goes on after a kill."""

    skip: Skip
    examined: int
    accepted: int


class Journal:
    """What has been tried, in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        """Reads what is there; a last line that a kill left half-written is cut off."""
        path.touch()
        whole, _, rest = path.read_bytes().rpartition(b"\n")
        self._path = path
        self.tried: dict[Skip, Tried] = {}
        if rest:
            path.write_bytes(whole + b"\n" if whole else b"")
        for line in whole.splitlines():
            found = msgspec.json.decode(line, type=Tried)
            self.tried[found.skip] = found

    def add(self, tried: Tried) -> None:
        """Append a line."""
        self.tried[tried.skip] = tried
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(tried) + b"\n")


class Found(NamedTuple):
    """The set, and what it is expected to bring on texts that the search did not see."""

    skip: Skip
    counts: Counts
    cost: float
    best: Best


class Lesson:
    """A target and texts that it wrote; tells how much of the drafts with some layers left out it would take."""

    def __init__(self, target: LoadedModel, excerpts: Iterable[Excerpt]) -> None:
        self._target = target.forward
        self._heard = [Heard(target.forward, excerpt, target.device) for excerpt in excerpts]

    @property
    def rounds(self) -> int:
        """That begin in the texts."""
        return sum(len(heard.rows) for heard in self._heard)

    def counts(self, skip: Skip, positions: int) -> Counts:
        """By position, of all texts."""
        draft = self._target.without_layers(skip)
        return Counts.total([count(draft, heard, positions) for heard in self._heard])


def split(excerpts: Sequence[Excerpt], rows: int, seed: int) -> tuple[list[Excerpt], list[Excerpt]]:
    """Texts to search on and others to judge by, of about so many rounds each, in an order that follows the seed.

    Where there are too few for both, they are shared out evenly; of one text alone both get it.
    """
    order = random.Random(seed).sample(excerpts, len(excerpts))  # noqa: S311  an order, not a secret
    parts: tuple[list[Excerpt], list[Excerpt]] = ([], [])
    sizes = [0, 0]
    for excerpt in order:
        fewest = sizes.index(min(sizes))
        if sizes[fewest] < rows:
            parts[fewest].append(excerpt)
            sizes[fewest] += len(excerpt.tokens) - excerpt.start
    return parts[0], parts[1] or parts[0]


def searched(lesson: Lesson, costs: Costs, journal: Journal) -> Iterator[Progress]:
    """Search, going on from the journal; yields after each set, the last one's best is the answer."""

    def worth(skip: Skip) -> float:
        tried = journal.tried.get(skip)
        if tried is None:
            seen = lesson.counts(skip, 1)
            tried = Tried(skip, seen.examined[0], seen.accepted[0])
            journal.add(tried)
        return best([tried.accepted / max(tried.examined, 1)], costs.of(len(skip))).speedup

    return search(costs.layers, worth, width=_WIDTH)


def judged(skip: Skip, held: Lesson, costs: Costs) -> Found:
    """What a set brings on texts that the search did not see."""
    counts = held.counts(skip, _POSITIONS)
    cost = costs.of(len(skip))
    return Found(skip, counts, cost, best(counts.acceptance, cost))
