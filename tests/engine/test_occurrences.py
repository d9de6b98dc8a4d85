"""The suffix structure against one that remembers everything and searches it all; its bound; its scopes."""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.draft.match import LONGEST
from engine.draft.occurrences import Match, Occurrences, Text

RUNS = (8, 4, 2)
MOST = 8


class Known(NamedTuple):
    place: int
    token: int


class Oracle:
    """Texts as lists."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.written = capacity, 0
        self.texts: dict[int, list[Known]] = {}

    def add(self, name: int, token: int) -> None:
        self.written += 1
        self.texts.setdefault(name, []).append(Known(self.written, token))

    def kept(self, name: int) -> list[Known]:
        return [known for known in self.texts[name] if known.place > self.written - self.capacity]

    def find(self, name: int, scope: list[int]) -> Match | None:
        end = [known.token for known in self.texts[name]][-LONGEST:]
        matches = []
        for other in scope:
            text = self.kept(other)
            for i in range(len(text) - 1):
                before = [known.token for known in text[: i + 1]]
                length = 0
                while length < min(len(before), len(end)) and before[-1 - length] == end[-1 - length]:
                    length += 1
                matches.append((text[i].place, length))
        matches.sort(reverse=True)
        for run in RUNS:
            found = [match for match in matches if match[1] >= run][:MOST]
            if found:
                longest = max(length for _, length in found)
                return Match(longest, [place for place, length in found if length == longest])
        return None

    def continuation(self, name: int, place: int, most: int) -> list[int]:
        for other, text in self.texts.items():
            at = next((i for i, known in enumerate(text) if known.place == place), None)
            if at is not None:
                tokens = [known.token for known in text[at + 1 :]]
                repeats = most if other == name else 1
                return (tokens * repeats)[:most]
        raise LookupError(place)


@given(
    capacity=st.sampled_from([1, 5, 23, 100]),
    turns=st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 2), max_size=12)), max_size=10),
)
@settings(max_examples=150, deadline=None)
def test_what_is_found_is_what_a_search_of_everything_finds(
    capacity: int, turns: list[tuple[int, list[int]]]
) -> None:
    """Four texts in two scopes, in turns; texts 0 and 2 are of one scope, 1 and 3 of the other."""
    structure, oracle = Occurrences(capacity), Oracle(capacity)
    texts = {name: Text(name % 2) for name in range(4)}
    for name, tokens in turns:
        for token in tokens:
            structure.extend(texts[name], [token])
            oracle.add(name, token)
            expected = oracle.find(name, [other for other in oracle.texts if other % 2 == name % 2])
            found = structure.find(texts[name])
            assert found == expected
            for place in found.places if found else ():
                assert structure.continuation(texts[name], place, 7) == oracle.continuation(name, place, 7)


def test_memory_is_bounded_in_bytes_and_the_oldest_goes_first() -> None:
    size = 10_000
    structure = Occurrences.of_bytes(size)
    assert 0.99 * size < structure.nbytes <= size
    old, filler, asks = Text(0), Text(0), Text(0)
    structure.extend(old, [1, 2, 3])
    structure.extend(filler, range(100, 100 + structure.capacity - 5))
    structure.extend(asks, [1, 2])
    match = structure.find(asks)
    assert match is not None
    assert structure.continuation(asks, match.places[0], 2) == [3]
    structure.extend(filler, [98])  # the old text's first token goes: its run of two is not whole any more
    assert structure.find(asks) is None
    assert structure.nbytes <= size


def test_the_newest_of_many_occurrences_are_looked_at() -> None:
    structure = Occurrences(1000)
    for follows in range(20, 40):
        structure.extend(Text(0), [1, 2, follows])
    asks = Text(0)
    structure.extend(asks, [1, 2])
    match = structure.find(asks)
    assert match is not None
    assert [structure.continuation(asks, place, 3) for place in match.places] == [
        [f] for f in range(39, 39 - MOST, -1)
    ]
