"""Incremental text: whole characters, stop strings across tokens, and spaces that a vocabulary marks on words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.api import Request, SamplingParams
from engine.text import TextStream
from tests.tiny import make_tokenizer

BYTES = make_tokenizer()


def streamed(stream: TextStream, tokens: list[int]) -> str:
    return "".join(stream.push([token]) for token in tokens) + stream.flush()


@given(st.text(max_size=40))
def test_streamed_text_is_the_text(text: str) -> None:
    assert streamed(TextStream(BYTES), BYTES.encode(text).ids) == text


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_the_first_stop_string_cuts_whatever_the_tokens(text: str, stops: list[str]) -> None:
    stream = TextStream(BYTES, tuple(stops))
    got = streamed(stream, BYTES.encode(text).ids)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert (got, stream.stopped) == (text, False)
    else:
        first = min(ends)
        begins = min(text[:first].find(stop) for stop in stops if stop in text[:first])
        assert (got, stream.stopped) == (text[:begins], True)


@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(0, 9),
)
def test_a_stop_counts_from_the_first_token_behind_min_tokens_and_stays_if_asked(
    text: str, stops: list[str], min_tokens: int
) -> None:
    """By the plainest reading: look at the text after every token; what is completed early ends nothing."""
    tokens = BYTES.encode(text).ids
    wanted, stopped = text, False
    for n in range(min_tokens + 1, len(tokens) + 1):
        before, now = (len(BYTES.decode(tokens[:m])) for m in (n - 1, n))
        ends = [e for e in range(before + 1, now + 1) if any(text[:e].endswith(stop) for stop in stops)]
        if ends:
            wanted, stopped = text[: ends[0]], True
            break
    stream = TextStream(BYTES, tuple(stops), include_stop=True, min_tokens=min_tokens)
    assert (streamed(stream, tokens), stream.stopped) == (wanted, stopped)


@pytest.mark.parametrize("include", [True, False])
def test_the_text_of_a_stop_token_is_left_out_unless_asked_for(include: bool) -> None:
    one, two, stop = (BYTES.encode(text).ids for text in ("é", "x", "S"))
    stream = TextStream(BYTES, stop_tokens=stop, include_stop=include)
    tokens = [*two, *one[:1], *stop, *two]
    assert streamed(stream, tokens) == ("x\N{REPLACEMENT CHARACTER}" + ("S" if include else ""))
    assert stream.stopped


def test_engine_and_daemon_read_a_request_alike() -> None:
    asked = SamplingParams(max_tokens=9, stop=("b",), stop_tokens=(90,), include_stop=True, min_tokens=2)
    stream = TextStream.of(BYTES, Request(id="a", prompt=[5], sampling=asked))
    assert streamed(stream, BYTES.encode("bbaba").ids) == "bbab"


def test_half_a_character_comes_out_as_a_replacement_only_at_the_end() -> None:
    ids = BYTES.encode("é").ids
    assert len(ids) > 1
    stream = TextStream(BYTES)
    assert stream.push(ids[:1]) == ""
    assert stream.flush() == "\N{REPLACEMENT CHARACTER}"


@pytest.fixture
def metaspace() -> Tokenizer:
    """A vocabulary in which a word carries the space before it, as llama 2 and mistral have it."""
    vocabulary = {"<unk>": 0, "▁once": 1, "▁upon": 2, "▁a": 3, "▁time": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def test_the_space_between_prompt_and_answer_is_not_lost(metaspace: Tokenizer) -> None:
    assert streamed(TextStream(metaspace, prompt=[1, 2]), [3, 4]) == " a time"
    assert streamed(TextStream(metaspace), [3, 4]) == "a time"


def test_a_text_that_does_not_go_on_from_its_prompt_begins_without_a_space(metaspace: Tokenizer) -> None:
    asked = Request(id="a", prompt=[1, 2], sampling=SamplingParams(max_tokens=2), continues=False)
    assert streamed(TextStream.of(metaspace, asked), [3, 4]) == "a time"


def test_a_stop_string_that_begins_with_that_space_is_found(metaspace: Tokenizer) -> None:
    stream = TextStream(metaspace, (" a",), prompt=[1, 2])
    assert streamed(stream, [3, 4]) == ""
    assert stream.stopped
