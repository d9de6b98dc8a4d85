"""Prompt lookup: longest match first, then most recent, then on and on."""

from engine.api import DraftSettings, Request, SamplingParams
from engine.draft.base import Ask
from engine.draft.match import LONGEST_DRAFT
from engine.draft.ngram import NgramProposer
from engine.kv.pool import BlockPool
from engine.sequence import Sequence
from policies.base import Option


def sequence(tokens: str) -> Sequence:
    return Sequence(
        Request(id="a", prompt=[ord(c) for c in tokens], sampling=SamplingParams(max_tokens=9)),
        BlockPool(1, 1),
        None,
    )


def proposer(shortest: int, longest: int) -> NgramProposer:
    return NgramProposer(DraftSettings(ngram_min=shortest, ngram_max=longest))


def draft(tokens: str, k: int, shortest: int = 1, longest: int = 3) -> str:
    (found,) = proposer(shortest, longest).propose([Ask(sequence(tokens), k, k)])
    return "".join(map(chr, found.tokens))


def test_the_longest_match_wins_over_a_more_recent_shorter_one() -> None:
    assert draft("abcX zcY abc", 1) == "X"


def test_the_most_recent_of_equal_matches_wins() -> None:
    assert draft("abX abY ab", 1) == "Y"


def test_a_loop_is_drafted_beyond_the_end_of_the_text() -> None:
    assert draft("xabab", 6, shortest=2) == "ababab"


def test_no_match_no_draft() -> None:
    assert draft("abcdef", 4) == ""
    assert draft("a", 4) == ""
    assert draft("aXa", 4, shortest=2) == ""


def test_the_index_catches_up_with_what_was_added_while_nobody_asked() -> None:
    looking = proposer(1, 3)
    seq = sequence("abc")
    assert looking.propose([Ask(seq, 2, 2)])[0].tokens == []
    seq.tokens += [ord(c) for c in "dabc"]
    assert looking.propose([Ask(seq, 2, 2)])[0].tokens == [ord("d"), ord("a")]


def test_forgetting_drops_the_index() -> None:
    looking = proposer(1, 3)
    looking.propose([Ask(sequence("abab"), 2, 2)])
    looking.forget("a")
    looking.forget("never heard of")
    assert looking._indexes == {}


def test_a_longer_match_offers_a_longer_draft_of_a_better_grade() -> None:
    offers = [proposer(1, 3).options(sequence(text)) for text in ("abX ab", "abcdeX abcde", "abcdef")]
    assert offers == [(Option("ngram", 4, grade=0),), (Option("ngram", 10, grade=1),), ()]


def test_a_match_is_measured_beyond_what_is_indexed_and_not_beyond_what_matters() -> None:
    (offer,) = proposer(1, 3).options(sequence("abcdefghijklmnopqrX-abcdefghijklmnopqr"))
    assert offer == Option("ngram", LONGEST_DRAFT, grade=3)
