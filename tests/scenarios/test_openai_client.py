"""The official `openai` client against a real daemon."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer

from tests.scenarios.stage import RealDaemon

PROMPTS = ["the daemon drafts", "def add(a, b):", "the target decides, the target decides", "K"]
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
LENGTH = 120


def complete(client: openai.OpenAI, prompt: str, *, specd: dict[str, Any] | None = None, **body: Any) -> Any:
    """A whole completion: greedy and of `LENGTH` tokens, unless told otherwise."""
    extra = {"ignore_eos": True, "specd": {"report": True, **(specd or {})}}
    body = {"max_tokens": LENGTH, "temperature": 0.0} | body
    return client.completions.create(model="tiny", prompt=prompt, extra_body=extra, **body)


def chat(client: openai.OpenAI, content: str, *, specd: dict[str, Any] | None = None, **body: Any) -> Any:
    """The same as a chat."""
    extra = {"ignore_eos": True, "specd": {"report": True, **(specd or {})}}
    body = {"max_tokens": LENGTH, "temperature": 0.0} | body
    messages = [{"role": "user", "content": content}]
    return client.chat.completions.create(model="tiny", messages=messages, extra_body=extra, **body)


def text(answer: Any) -> str:
    choice = answer.choices[0]
    return choice.text if answer.object == "text_completion" else choice.message.content


def test_models_list(client: openai.OpenAI) -> None:
    """Test that the one model is listed under its configured name."""
    assert [model.id for model in client.models.list()] == ["tiny"]


@pytest.mark.parametrize("ask", [complete, chat])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_speculation_changes_no_greedy_text(
    client: openai.OpenAI, ask: Callable[..., Any], prompt: str
) -> None:
    """Test that text and finish are the same without drafts, as the policy likes, and with 8 drafted tokens."""
    answers = [ask(client, prompt, specd=specd) for specd in ({"speculate": "off"}, {}, {"k": 8})]
    plain, *others = [(text(answer), answer.choices[0].finish_reason) for answer in answers]
    assert others == [plain, plain]
    assert plain[1] == "length"
    off, _, fixed = [answer.specd for answer in answers]
    assert (off["drafted"], set(off["k_histogram"])) == (0, {"0"})
    assert fixed["drafted"] > 0


@pytest.mark.parametrize("prompt", PROMPTS[:3])
def test_report_accounts_for_every_token(client: openai.OpenAI, prompt: str) -> None:
    """Test that rounds and accepted drafts add up to the usage: one token by the prompt, one by each round."""
    report = complete(client, prompt).specd
    assert 1 + report["rounds"] + sum(report["accepted"]) == LENGTH
    assert sum(report["k_histogram"].values()) == report["rounds"]
    assert report["proposers"] == {"ngram": report["examined"][0]}
    assert all(a <= e for a, e in zip(report["accepted"], report["examined"], strict=True))
    assert sum(report["examined"]) <= report["drafted"]


def test_a_request_may_fix_its_draft_length(client: openai.OpenAI) -> None:
    """Test that `k` is what rounds get, but where a short match says less, nothing says anything, or the text ends."""
    bounded = complete(client, PROMPTS[0], specd={"k": 3, "k_max": 1}).specd["k_histogram"]
    assert set(bounded) <= {"0", "1"}
    histogram = complete(client, PROMPTS[0], specd={"k": 3}).specd["k_histogram"]
    assert set(histogram) <= {"0", "1", "2", "3"}
    assert histogram["3"] > sum(histogram.values()) / 2


@pytest.mark.parametrize("ask", [complete, chat])
def test_usage_is_right_to_the_token(
    client: openai.OpenAI, ask: Callable[..., Any], tokenizer: Tokenizer
) -> None:
    """Test that prompt tokens are those of the templated prompt, and completion tokens those asked for."""
    content = "the daemon drafts: ümläut"
    prompt = content if ask is complete else CHAT.format(content)
    usage = ask(client, content, max_tokens=17).usage
    expected = len(tokenizer.encode(prompt).ids)
    assert (usage.prompt_tokens, usage.completion_tokens) == (expected, 17)
    assert usage.total_tokens == expected + 17


@pytest.mark.parametrize("ask", [complete, chat])
def test_streamed_pieces_are_the_whole(client: openai.OpenAI, ask: Callable[..., Any]) -> None:
    """Test that the deltas join to the whole text, and that usage and report come once, after the finish."""
    whole = ask(client, PROMPTS[1])
    *chunks, tail = ask(client, PROMPTS[1], stream=True, stream_options={"include_usage": True})
    choices = [chunk.choices[0] for chunk in chunks]
    pieces = [choice.text if ask is complete else choice.delta.content or "" for choice in choices]
    assert "".join(pieces) == text(whole)
    assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert len(pieces) > 3
    assert (tail.choices, tail.usage.completion_tokens) == ([], whole.usage.completion_tokens)
    assert tail.specd["rounds"] > 0
    assert not any(chunk.usage or hasattr(chunk, "specd") for chunk in chunks)
    assert {chunk.id for chunk in chunks} == {tail.id}


def test_report_of_a_stream_without_usage(client: openai.OpenAI) -> None:
    """Test that the chunk with the finish carries the report where no usage was asked for."""
    *chunks, last = complete(client, PROMPTS[0], stream=True)
    assert last.choices[0].finish_reason == "length"
    assert last.specd["rounds"] > 0
    assert not any(hasattr(chunk, "specd") for chunk in chunks)


@pytest.mark.parametrize("specd", [{"speculate": "off"}, {"k": 4}])
def test_seeded_sampling_is_repeatable(client: openai.OpenAI, specd: dict[str, Any]) -> None:
    """Test that a seed gives one text, alone and in company, and that another seed gives another one."""

    def sample(seed: int) -> str:
        return text(complete(client, PROMPTS[0], temperature=0.8, seed=seed, specd=specd))

    alone = [sample(seed) for seed in range(4)]
    with ThreadPoolExecutor(8) as pool:
        in_company = list(pool.map(sample, [0, 1, 2, 3] * 2))
    assert in_company == alone * 2
    assert len(set(alone)) == 4


def latest(full: str) -> str:
    """The four characters that come up for the first time as late as any do. Where a text is cut within a character it
    ends in another one, so none of these.
    """
    pieces = [full[at : at + 4] for at in range(len(full) - 3)]
    return max((piece for piece in pieces if "\ufffd" not in piece), key=full.index)


@pytest.mark.parametrize("specd", [{"speculate": "off"}, {"k": 8}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_cuts_the_text_before_it(
    client: openai.OpenAI, specd: dict[str, Any], stream: bool
) -> None:
    """Test that text ends where the string would begin, also within an accepted draft, and the finish says so."""
    full = text(complete(client, PROMPTS[1]))
    stop = latest(full)
    answer = complete(client, PROMPTS[1], stop=[stop, "not in it"], specd=specd, stream=stream)
    if stream:
        chunks = list(answer)
        found, reason = "".join(c.choices[0].text for c in chunks), chunks[-1].choices[0].finish_reason
    else:
        found, reason = text(answer), answer.choices[0].finish_reason
    assert (found, reason) == (full[: full.index(stop)], "stop")


def test_usage_counts_up_to_the_token_that_completes_the_stop_string(client: openai.OpenAI) -> None:
    """Test that exactly the counted number of tokens is needed to see the string, drafts beyond it not counted."""
    stop = latest(text(complete(client, PROMPTS[1])))
    counted = complete(client, PROMPTS[1], stop=stop, specd={"k": 8}).usage.completion_tokens
    assert stop in text(complete(client, PROMPTS[1], max_tokens=counted))
    assert stop not in text(complete(client, PROMPTS[1], max_tokens=counted - 1))


REFUSED = [
    ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
    ({"max_tokens": 10_000}, "max_tokens is 10000, but after a prompt of"),
    ({"temperature": -0.5}, "temperature must be at least 0.0, not -0.5"),
    ({"prompt": "word " * 3000}, "and the context holds 4096"),
    ({"specd": {"k": 17}}, "specd.k must be at most 16, not 17"),
]


@pytest.mark.parametrize(("body", "sentence"), REFUSED)
def test_what_cannot_run_is_refused_by_name(
    client: openai.OpenAI, body: dict[str, Any], sentence: str
) -> None:
    """Test that the client sees its own exception for a bad request, with a sentence that says what is wrong."""
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, body.pop("prompt", "a"), **body)
    assert sentence in refused.value.message


def test_a_model_that_is_not_served(client: openai.OpenAI) -> None:
    """Test that another model's name is not found, and that the answer names the one there is."""
    with pytest.raises(openai.NotFoundError, match="'gpt-9' is not served here, 'tiny' is"):
        client.completions.create(model="gpt-9", prompt="a")


def test_a_body_that_is_not_json(served: RealDaemon) -> None:
    """Test that a broken body gets 400 in OpenAI's envelope."""
    answer = served.post("/v1/completions", content=b"{")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
