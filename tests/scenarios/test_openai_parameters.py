"""What OpenAI's and vLLM's parameters do to the text of a real engine, with speculation and without."""

from typing import Any

import openai
import pytest
from tokenizers import Tokenizer

from engine.token_bytes import TokenBytes
from tests.scenarios.test_openai_client import CHAT, PROMPTS, chat, complete, text

BOTH = pytest.mark.parametrize("specd", [{"speculate": "off"}, {"k": 6}], ids=["plain", "k=6"])
PROMPT = PROMPTS[1]
SHORT = {"max_tokens": 24}


def ask(client: openai.OpenAI, prompt: Any, specd: dict[str, Any], **body: Any) -> Any:
    """A greedy completion; the official client would refuse vLLM's names as arguments."""
    known = {"logprobs", "echo", "n", "seed", "temperature", "max_tokens", "logit_bias", "stop", "stream"}
    ours = {name: value for name, value in body.items() if name not in known}
    arguments = {"max_tokens": 24, "temperature": 0.0} | {n: v for n, v in body.items() if n in known}
    return client.completions.create(
        model="tiny",
        prompt=prompt,
        extra_body={"ignore_eos": True, "specd": {"report": True, **specd}, **ours},
        **arguments,
    )


@BOTH
def test_the_first_of_several_texts_is_the_only_one_of_its_seed(
    client: openai.OpenAI, specd: dict[str, Any]
) -> None:
    """Test that n adds texts, each of its own, to the one that the seed has anyway, and counts all their tokens."""
    sampled = {"temperature": 0.8, "seed": 3}
    several = ask(client, PROMPT, specd, n=3, **sampled)
    texts = [choice.text for choice in several.choices]
    assert len(set(texts)) == 3
    assert several.usage.completion_tokens == 3 * 24
    if "k" not in specd:
        assert texts[0] == text(ask(client, PROMPT, specd, **sampled))


@BOTH
def test_texts_of_a_stream_are_those_of_the_whole(client: openai.OpenAI, specd: dict[str, Any]) -> None:
    """Test that the pieces of each index join to that index's text."""
    body = {"n": 3, "temperature": 0.8, "seed": 3}
    whole = [choice.text for choice in ask(client, PROMPT, specd, **body).choices]
    streamed = [""] * 3
    for chunk in ask(client, PROMPT, specd, stream=True, **body):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == whole


def test_logprobs_are_those_of_plain_decoding(client: openai.OpenAI) -> None:
    """Test that tokens, offsets and logprobs are the same whatever was drafted, and fit the text."""
    plain, drafted = [
        ask(client, PROMPT, specd, logprobs=3).choices[0] for specd in ({"speculate": "off"}, {"k": 6})
    ]
    assert drafted.logprobs.tokens == plain.logprobs.tokens
    assert drafted.logprobs.token_logprobs == pytest.approx(plain.logprobs.token_logprobs, abs=1e-4)
    assert drafted.logprobs.text_offset == plain.logprobs.text_offset
    for token, offset in zip(plain.logprobs.tokens, plain.logprobs.text_offset, strict=True):
        assert token.startswith(("bytes:", "<|")) or plain.text[offset:].startswith(token)


def test_a_text_scored_as_a_prompt_has_the_logprobs_it_was_made_with(
    client: openai.OpenAI, tokenizer: Tokenizer
) -> None:
    """Test that echo with max_tokens = 0 gives the tokens of an answer what the answer gave them itself."""
    by_name = {TokenBytes(tokenizer).shown(token): token for token in range(tokenizer.get_vocab_size())}
    made = ask(client, PROMPT, {}, logprobs=0).choices[0].logprobs
    prompt = tokenizer.encode(PROMPT).ids
    tokens = prompt + [by_name[name] for name in made.tokens]
    answer = ask(client, tokens, {}, logprobs=0, echo=True, max_tokens=0)
    scored = answer.choices[0].logprobs
    assert scored.token_logprobs[0] is None
    assert scored.token_logprobs[len(prompt) :] == pytest.approx(made.token_logprobs, abs=1e-4)
    assert answer.usage.completion_tokens == 0
    assert "prompt" in answer.specd["not_speculated"]


def test_a_prompt_is_scored_beside_a_text(client: openai.OpenAI) -> None:
    """Test that prompt_logprobs has a row for each token of the prompt, however many steps the text takes."""
    extra = {"prompt_logprobs": 2}
    answer = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=8, temperature=0, extra_body=extra
    )
    (choice,) = answer.choices
    assert answer.usage.completion_tokens > 1
    first, *rows = choice.prompt_logprobs
    assert first is None
    assert len(rows) == answer.usage.prompt_tokens - 1
    assert all(len(row) in {2, 3} for row in rows)


@BOTH
def test_tokens_can_be_forced_and_kept_away(
    client: openai.OpenAI, tokenizer: Tokenizer, specd: dict[str, Any]
) -> None:
    """Test that only allowed tokens come, banned ones do not, and a bias of 100 decides."""
    a, b = tokenizer.encode("a").ids[0], tokenizer.encode("b").ids[0]
    assert set(text(ask(client, PROMPT, specd, allowed_token_ids=[a, b]))) <= set("ab")
    assert text(ask(client, PROMPT, specd, allowed_token_ids=[a, b], banned_token_ids=[b])) == "a" * 24
    assert text(ask(client, PROMPT, specd, logit_bias={str(b): 100})) == "b" * 24


@BOTH
def test_a_stop_token_waits_for_the_least_number_of_tokens(
    client: openai.OpenAI, tokenizer: Tokenizer, specd: dict[str, Any]
) -> None:
    """Test that min_tokens keeps a stop token away and that the text ends at the first one after."""
    a, b = tokenizer.encode("a").ids[0], tokenizer.encode("b").ids[0]
    body = {"allowed_token_ids": [a, b], "logit_bias": {str(b): 100}, "stop_token_ids": [b]}
    at_once = ask(client, PROMPT, specd, **body)
    assert (text(at_once), at_once.choices[0].finish_reason) == ("", "stop")
    later = ask(client, PROMPT, specd, min_tokens=5, **body)
    assert (text(later), later.usage.completion_tokens) == ("a" * 5, 6)


@BOTH
def test_a_stop_string_can_be_part_of_the_text(client: openai.OpenAI, specd: dict[str, Any]) -> None:
    """Test that the string is the end of the text, also where a draft went on behind it."""
    full = text(ask(client, PROMPT, specd))
    stop = full[9:12]
    kept = ask(client, PROMPT, specd, stop=stop, include_stop_str_in_output=True)
    assert text(kept) == full[: full.index(stop) + len(stop)]


@BOTH
def test_penalties_change_the_text(client: openai.OpenAI, specd: dict[str, Any]) -> None:
    """Test that a frequency penalty, which forbids loops, gives one text with drafts and without."""
    plain = text(ask(client, PROMPT, {"speculate": "off"}, frequency_penalty=2.0, repetition_penalty=1.3))
    assert text(ask(client, PROMPT, specd, frequency_penalty=2.0, repetition_penalty=1.3)) == plain
    assert plain != text(ask(client, PROMPT, specd))


def test_a_prompt_that_comes_again_is_cached(client: openai.OpenAI) -> None:
    """Test that usage tells how much of the prompt was not computed again, and the text is the same."""
    prompt = "a prompt of its own, longer than one block of the cache: " * 3
    first, second = complete(client, prompt), complete(client, prompt)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert 0 < second.usage.prompt_tokens_details.cached_tokens < second.usage.prompt_tokens
    assert text(second) == text(first)


def test_a_message_can_be_continued(client: openai.OpenAI) -> None:
    """Test that the text of a continued message is that which follows the message's own tokens."""
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "I s"}],
        temperature=0,
        max_tokens=24,
        extra_body={"continue_final_message": True, "ignore_eos": True},
    )
    expected = ask(client, CHAT.format("hi") + "I s", {})
    assert text(answer) == text(expected)
    assert answer.usage.prompt_tokens == expected.usage.prompt_tokens


def test_chat_logprobs_name_the_likeliest(client: openai.OpenAI) -> None:
    """Test that a greedy chat's tokens are the first of their five likeliest."""
    answer = chat(client, "hi", logprobs=True, top_logprobs=5, **SHORT)
    content = answer.choices[0].logprobs.content
    assert len(content) == 24
    for token in content:
        assert len(token.top_logprobs) == 5
        assert (token.top_logprobs[0].token, token.top_logprobs[0].logprob) == (token.token, token.logprob)
