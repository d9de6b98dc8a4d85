"""Incremental text: whole characters, stop strings across tokens, and spaces that a vocabulary marks on words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

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


def test_a_stop_string_that_begins_with_that_space_is_found(metaspace: Tokenizer) -> None:
    stream = TextStream(metaspace, (" a",), prompt=[1, 2])
    assert streamed(stream, [3, 4]) == ""
    assert stream.stopped
