"""Suffix decoding: the surer of a text's own past and the history of its scope; nobody else's text is ever drafted."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import DraftSettings, Request, SamplingParams
from engine.draft.base import Ask
from engine.draft.shape import depths, misshapen
from engine.draft.suffix import SuffixProposer, grown, likeliest
from engine.kv.pool import BlockPool
from engine.sequence import Sequence
from policies.base import Option


def proposer(**changes: object) -> SuffixProposer:
    return SuffixProposer(DraftSettings(**{"suffix_bytes": 1 << 16, **changes}))


def sequence(prompt: str, name: str = "a", tenant: str = "default") -> Sequence:
    request = Request(
        id=name, prompt=[ord(c) for c in prompt], sampling=SamplingParams(max_tokens=99), tenant=tenant
    )
    return Sequence(request, BlockPool(1, 1), None)


def say(text: Sequence, more: str) -> None:
    text.extend([ord(c) for c in more])


def draft(of: SuffixProposer, text: Sequence, k: int = 16) -> str:
    (found,) = of.propose([Ask(text, k, k)])
    return "".join(map(chr, found.tokens))


def finished(of: SuffixProposer, said: str, *, tenant: str = "default", prompt: str = "Q:") -> None:
    """A text of which the last token was committed by the step that ended it."""
    text = sequence(prompt, "finished", tenant)
    of.options(text)
    say(text, said)
    of.forget("finished")


def test_a_text_is_drafted_from_its_own_prompt_in_proportion_to_the_match() -> None:
    text = sequence("abcdefgh abc")
    suffix = proposer(match_factor=1.0)
    assert suffix.options(text) == (Option("suffix", 3, grade=1),)
    assert draft(suffix, text) == "def"
    assert draft(suffix, text, k=2) == "de"
    assert suffix.options(sequence("uvwxyz", "b")) == ()


def test_the_longest_match_wins_and_several_that_agree_are_of_a_better_grade() -> None:
    assert draft(proposer(), sequence("abcX zbcY zcY abc"), 1) == "X"
    (offer,) = proposer(match_factor=1.0).options(sequence("1abX 2abX 3ab"))
    assert offer == Option("suffix", 2, grade=2)  # what followed is the same as far as it goes


def test_occurrences_that_part_are_offered_as_a_chain_and_as_a_tree() -> None:
    text = sequence("abX1abX2abY3ab")
    suffix = proposer(match_factor=1.0)
    assert suffix.options(text) == (Option("suffix", 2, grade=1), Option("suffix", 2, grade=1, width=2))
    assert draft(suffix, text) == "X2"  # most said X, and of these the newest 2
    (tree,) = suffix.propose([Ask(text, 4, 2)])
    assert "".join(map(chr, tree.tokens)) == "XY21"
    assert tree.parents == [-1, -1, 0, 0]


def test_a_loop_is_drafted_beyond_the_end_of_the_text() -> None:
    assert draft(proposer(match_factor=8.0), sequence("xabab"), 6) == "ababab"


def test_finished_and_running_texts_of_the_tenant_are_drafted_from() -> None:
    suffix = proposer()
    finished(suffix, "the answer")
    assert draft(suffix, sequence("Q:"), 10) == "the "  # twice as long as what both prompts end in
    running = sequence("R:", "running")
    suffix.options(running)
    say(running, "another")
    suffix.options(running)
    assert draft(suffix, sequence("an", "b")) == "othe"


def test_what_another_tenant_said_is_not_drafted_unless_all_share() -> None:
    for across, expected in (("request", ""), ("tenant", ""), ("all", "the ")):
        suffix = proposer(suffix_across=across)
        finished(suffix, "the answer", tenant="other")
        assert draft(suffix, sequence("Q:")) == expected, across


def test_the_surer_of_own_text_and_history_is_taken() -> None:
    suffix = proposer()
    finished(suffix, "a long match X")
    text = sequence("tchO a long match ")
    assert draft(suffix, text, 1) == "X"
    own = sequence("a long match O and a long match ", "b")
    assert draft(suffix, own, 1) == "O"


def test_a_tenant_that_was_forgotten_comes_back_as_another() -> None:
    """The number that a tenant's texts are kept under is never given to two."""
    suffix = proposer()
    finished(suffix, "the answer", tenant="old")
    for i in range(1024):
        suffix._scope(f"t{i}")
    assert draft(suffix, sequence("Q:", tenant="old")) == ""
    assert len(suffix._scopes) == 1024


def test_a_long_prompt_is_taken_in_bit_by_bit() -> None:
    text = sequence("ab" * 1500)
    suffix = proposer()
    assert suffix.options(text) == ()
    assert suffix.options(text) == ()  # as long as the text has not grown, nothing is done again
    say(text, "a")
    assert suffix.options(text) == (Option("suffix", 16, grade=4),)


def test_the_end_of_a_text_that_nobody_looked_into_waits_for_a_part_of_it_alone() -> None:
    """Its first part goes into the history, however long it became."""
    suffix = proposer(suffix_across="all", suffix_bytes=1 << 20)
    text = sequence("Q:" * 5000, "long")
    suffix.options(text)
    say(text, "abcdefgh" + "x" * 5000 + "ijklmnop")
    suffix.forget("long")
    other = sequence("so abcd", "other")
    assert draft(suffix, other, 4) == "efgh"
    say(other, " and then ijkl")
    assert draft(suffix, other, 4) != "mnop"


def test_forgetting_drops_what_is_kept_of_a_text() -> None:
    suffix = proposer()
    suffix.options(sequence("abab"))
    suffix.forget("a")
    suffix.forget("never heard of")
    assert suffix._lookups == {}


TEXTS = st.lists(
    st.tuples(st.sampled_from("xyz"), st.text("01", min_size=1, max_size=12)), min_size=1, max_size=6
)


@given(texts=TEXTS, across=st.sampled_from(["request", "tenant"]))
@settings(max_examples=40, deadline=None)
def test_drafts_are_made_of_the_allowed_texts_alone(texts: list[tuple[str, str]], across: str) -> None:
    """Each tenant, or each request, writes in an alphabet of its own: a strange letter in a draft would be a leak."""
    suffix = proposer(suffix_across=across)
    running = []
    for i, (tenant, bits) in enumerate(texts):
        own = 10 * ("xyz".index(tenant) if across == "tenant" else i)
        # all begin alike, so that the others' texts would be found
        text = sequence("#!", f"{i}", tenant)
        running.append((text, own))
        for bit in bits:
            suffix.options(text)
            text.extend([own + int(bit)])
        if i % 2:
            suffix.forget(text.id)
    for text, own in running:
        text.extend([ord(c) for c in "#!"])
        (found,) = suffix.propose([Ask(text, 16, 16)])
        assert set(found.tokens) <= {own, own + 1, ord("#"), ord("!")}


@given(
    runs=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8),
    nodes=st.integers(1, 12),
    levels=st.integers(1, 6),
)
@settings(max_examples=60, deadline=None)
def test_a_tree_holds_the_prefixes_that_most_runs_pass_through(
    runs: list[list[int]], nodes: int, levels: int
) -> None:
    found = grown(runs, nodes, levels)
    assert misshapen(list(found.shape)) is None
    assert max(depths(found.shape)) <= levels
    ways = [tuple(found.way(row)) for row in range(1, len(found.tokens) + 1)]
    assert len(set(ways)) == len(ways) <= nodes
    prefixes = {tuple(run[:depth]) for run in runs for depth in range(1, min(levels, len(run)) + 1)}
    passing = {way: sum(tuple(run[: len(way)]) == way for run in runs) for way in prefixes}
    best = sorted(passing.values(), reverse=True)[:nodes]
    assert sorted((passing[way] for way in ways), reverse=True) == best


def test_a_chain_ends_where_too_few_agree() -> None:
    assert likeliest([[1, 2], [1, 3], [1, 4], [1, 5], [1, 6], [1, 7]]) == ([1], 6)
    assert likeliest([[1, 2], [3], [3]]) == ([3], 2)
