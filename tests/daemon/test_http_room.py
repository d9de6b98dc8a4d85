"""How long a text is at least, by its bytes: never more than the tokenizer says, and known before that is asked."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from specd.http.chat_template import Chat
from specd.http.errors import ApiError
from specd.http.prompt import PromptEncoder
from specd.http.room import Room, Shortest
from tests.daemon.conftest import byte_tokenizer, write_served_model

SPACES = "Ġ" * 7


def tokenizer(*missing: str) -> Tokenizer:
    """Bytes, but for those whose letters are missing, and a piece of seven spaces."""
    letters = [one for one in sorted(pre_tokenizers.ByteLevel.alphabet()) if one not in missing]
    pieces = [*letters, *("Ġ" * n for n in range(2, 8))]
    merges = [("Ġ" * n, "Ġ") for n in range(1, 7)]
    made = Tokenizer(models.BPE(vocab={piece: at for at, piece in enumerate(pieces)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def with_nfc() -> Tokenizer:
    made = tokenizer()
    made.normalizer = normalizers.NFC()
    return made


def with_long_special() -> Tokenizer:
    made = tokenizer()
    made.add_special_tokens(["<|a special token, longer than all|>"])
    return made


def eats_spaces() -> Tokenizer:
    made = tokenizer()
    made.add_tokens([AddedToken("<eats>", lstrip=True)])
    return made


def lowers() -> Tokenizer:
    made = tokenizer()
    made.normalizer = normalizers.Lowercase()
    return made


def drops_spaces() -> Tokenizer:
    made = tokenizer()
    split = pre_tokenizers.Split(" ", "removed")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return made


def nfc_and_missing() -> Tokenizer:
    made = tokenizer("Ć")  # that of byte 6
    made.normalizer = normalizers.NFC()
    return made


TEXTS = st.lists(
    st.one_of(
        st.text(max_size=20),
        st.sampled_from(
            [
                " " * 70,
                "\x06" * 9,
                "\u03b9\u0308\u0301" * 5,
                "\u212a" * 4,
                "<|a special token, longer than all|>",
            ]
        ),
    ),
    max_size=6,
).map("".join)


@pytest.mark.parametrize(
    ("make", "bytes_a_token"),
    [
        (tokenizer, 7),
        (lambda: tokenizer("Ć"), 7),
        (with_nfc, 28),
        (with_long_special, 36),
        (byte_tokenizer, 8),
    ],
)
def test_no_text_is_shorter(make: Callable[[], Tokenizer], bytes_a_token: float) -> None:
    """Test that no text has fewer tokens than the bound says, whatever the tokenizer passes over or puts together."""
    made = make()
    shortest = Shortest.of(made)
    assert shortest.bytes_a_token == bytes_a_token

    @given(TEXTS)
    def holds(text: str) -> None:
        assert shortest.tokens(text) <= len(made.encode(text).ids)

    holds()
    assert shortest.tokens(" " * 1000) >= 1000 // bytes_a_token


@pytest.mark.parametrize("make", [eats_spaces, lowers, drops_spaces, nfc_and_missing])
def test_where_nothing_is_known_nothing_is_said(make: Callable[[], Tokenizer]) -> None:
    """Test that a tokenizer that may take more away than can be reckoned has no bound."""
    shortest = Shortest.of(make())
    assert math.isinf(shortest.bytes_a_token)
    assert shortest.tokens("a" * 10**6) == 0


class Unasked:
    """In the place of a tokenizer that is not to be asked."""

    def encode(self, *_: object, **__: object) -> None:
        raise AssertionError("it was tokenized")


@pytest.mark.parametrize(
    ("room", "code", "words"),
    [
        (Room(10_000, 100), "prompt_too_long", "at least 125 tokens, and this server takes 100"),
        (Room(120), "context_length_exceeded", "at least 125 tokens and the context holds 120"),
    ],
)
async def test_a_prompt_that_cannot_fit_is_not_tokenized(tmp_path, room, code, words):
    """Test that it is refused by its bytes alone, as a text and as a chat."""
    read = PromptEncoder.load(write_served_model(tmp_path / "model"))
    encoder = PromptEncoder(Unasked(), read.template, read.token_bytes, read.shortest)
    with pytest.raises(ApiError) as refused:
        await encoder.text("a" * 1000, room)
    assert (refused.value.code, refused.value.status) == (code, 400)
    assert words in str(refused.value.message)
    with pytest.raises(ApiError) as refused:
        await encoder.chat(Chat([{"role": "user", "content": "a" * 1000}]), room)
    assert refused.value.code == code
    with pytest.raises(AssertionError, match="it was tokenized"):
        await encoder.text("a" * 100, room)
