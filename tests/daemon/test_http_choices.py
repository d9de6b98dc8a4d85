"""Several texts, logprobs, the prompt's text and its logprobs, as both endpoints show them, whole and streamed."""

import math
from collections.abc import Iterator

import openai
import pytest

from engine.api import TokenLogprob
from engine.token_bytes import TokenBytes
from specd.http.logprobs import ChatLogprobs, CompletionLogprobs
from tests.daemon.conftest import Daemons, byte_tokenizer
from tests.daemon.daemon_process import DaemonProcess, wait_until
from tests.daemon.fake_engine import EOS
from tests.daemon.test_http_generate import A, B, events

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "hey"}]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory) -> Iterator[DaemonProcess]:
    daemons = Daemons(tmp_path_factory.mktemp("served"))
    yield daemons.start().ready()
    daemons.close()


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def post(daemon: DaemonProcess, path: str, **body: object) -> dict:
    answer = daemon.post(path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_several_texts_each_with_its_own_end(daemon):
    """Test that n texts come back in order, each with its finish, and that usage counts the prompt once."""
    answer = post(daemon, COMPLETIONS, prompt=[A, B, EOS], n=3, max_tokens=9)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["text"] for choice in answer["choices"]] == ["ab", "b", ""]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop"] * 3
    assert answer["usage"]["prompt_tokens"] == 3
    assert answer["usage"]["completion_tokens"] == 3 + 2 + 1
    assert answer["usage"]["total_tokens"] == 3 + 6
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


@pytest.mark.parametrize("usage", [True, False])
def test_several_texts_stream_with_their_index(daemon, usage):
    """Test that the chunks of each index are its text, end with its finish, and come with one usage for all."""
    options = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = events(
        daemon, COMPLETIONS, prompt="abc", n=3, max_tokens=7, specd={"report": True, "k": 1}, **options
    )
    texts, ends, reports = [""] * 3, {}, {}
    for chunk in chunks[:-1] if usage else chunks:
        (choice,) = chunk["choices"]
        assert choice["index"] not in ends
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            ends[choice["index"]] = choice["finish_reason"]
            reports[choice["index"]] = choice["specd"]["rounds"]
        assert "specd" not in chunk
    assert texts == ["abcabca", "bcabcab", "cabcabc"]
    assert ends == dict.fromkeys(range(3), "length")
    assert reports == dict.fromkeys(range(3), 5)
    if usage:
        assert (chunks[-1]["choices"], chunks[-1]["usage"]["completion_tokens"]) == ([], 21)


def test_each_text_has_its_own_report(daemon):
    """Test that of several texts each has a report, and that there is none for all of them."""
    answer = post(daemon, CHAT, messages=USER, n=2, max_tokens=4, specd={"report": True, "k": 0})
    assert [choice["specd"]["rounds"] for choice in answer["choices"]] == [4, 4]
    assert "specd" not in answer


def test_a_client_that_leaves_ends_all_texts(daemon):
    """Test that hanging up on a request for many texts leaves none of them in the engine."""
    with (
        pytest.raises(openai.APITimeoutError),
        openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0, timeout=0.1) as client,
    ):
        client.completions.create(
            model="tiny", prompt="a", n=64, max_tokens=250, extra_body={"specd": {"k": 0}}
        )
    wait_until(lambda: daemon.status()["load"]["admitted"] == 0, "the place to be free")
    wait_until(lambda: daemon.status()["load"]["running"] == 0, "the engine to drop all texts")


def test_one_text_that_fails_ends_the_request(daemon):
    """Test that an error of the engine in one of several texts is the answer, and the others are cancelled."""
    answer = daemon.post(COMPLETIONS, {"prompt": "<fail>", "n": 3, "max_tokens": 4})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_error")
    wait_until(lambda: daemon.status()["load"]["admitted"] == 0, "the place to be free")


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs_read_as_openai_has_them(client, stream):
    """Test that the official client gets each token with its bytes, its logprob and the likeliest, streamed or not."""
    answer = client.chat.completions.create(
        model="tiny", messages=USER, max_tokens=5, logprobs=True, top_logprobs=2, stream=stream
    )
    if stream:
        content = [
            token
            for chunk in answer
            if chunk.choices[0].logprobs is not None
            for token in chunk.choices[0].logprobs.content
        ]
    else:
        content = answer.choices[0].logprobs.content
    # The special tokens are not in the text, and are tokens all the same.
    assert [token.token for token in content] == ["<s>", "<|user|>", "h", "e", "y"]
    assert [bytes(token.bytes) for token in content] == [b"<s>", b"<|user|>", b"h", b"e", b"y"]
    assert [token.logprob for token in content] == [-0.5] * 5
    assert [(top.token, top.logprob) for top in content[2].top_logprobs] == [("h", -0.5), ("i", -1.5)]


def test_chat_logprobs_without_the_likeliest(client):
    """Test that logprobs = true alone gives those of the tokens."""
    answer = client.chat.completions.create(model="tiny", messages=USER, max_tokens=3, logprobs=True)
    assert [token.top_logprobs for token in answer.choices[0].logprobs.content] == [[]] * 3


@pytest.mark.parametrize("stream", [False, True])
def test_completion_logprobs_have_offsets_into_the_text(daemon, stream):
    """Test that the four lists agree with each other, that a torn character is shown as bytes, and where it begins."""
    body = {"prompt": "aé", "max_tokens": 4, "logprobs": 1}
    if stream:
        parts = [chunk["choices"][0]["logprobs"] for chunk in events(daemon, COMPLETIONS, **body)]
        found = {key: [one for part in parts for one in part[key]] for key in parts[0]}
    else:
        found = post(daemon, COMPLETIONS, **body)["choices"][0]["logprobs"]
    assert found == {
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", "a"],
        "token_logprobs": [-0.5] * 4,
        "top_logprobs": [{token: -0.5} for token in ("a", "bytes:\\xc3", "bytes:\\xa9", "a")],
        "text_offset": [0, 1, 1, 2],
    }


def test_offsets_count_what_stands_for_broken_characters(daemon):
    """Test that a character that is never completed ends where the next one begins, as it does in the text."""
    broken = b"\xc3a\xa9b\xc3\xc3a"
    prompt = [A + byte - ord("a") for byte in broken]
    (choice,) = post(daemon, COMPLETIONS, prompt=prompt, max_tokens=len(broken), logprobs=0)["choices"]
    assert choice["text"] == broken.decode(errors="replace")
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4, 5, 6]


def test_the_token_itself_is_among_the_likeliest(daemon):
    """Test that logprobs = 0 shows each token's own logprob, as OpenAI's legacy endpoint does."""
    found = post(daemon, COMPLETIONS, prompt="ab", max_tokens=2, logprobs=0)["choices"][0]["logprobs"]
    assert found["top_logprobs"] == [{"a": -0.5}, {"b": -0.5}]


@pytest.mark.parametrize("prompt", ["abc", [A, B, B + 1]])
@pytest.mark.parametrize("stream", [False, True])
def test_echo_puts_the_prompt_before_each_text(daemon, prompt, stream):
    """Test that the text begins with the prompt, given as text or tokens, for each of n texts."""
    body = {"prompt": prompt, "max_tokens": 2, "echo": True, "n": 2}
    texts = ["", ""]
    answers = events(daemon, COMPLETIONS, **body) if stream else [post(daemon, COMPLETIONS, **body)]
    for choice in (choice for answer in answers for choice in answer["choices"]):
        texts[choice["index"]] += choice["text"]
    assert texts == ["abcab", "abcbc"]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs_has_those_of_the_prompt(daemon, stream):
    """Test that the prompt's tokens come first, the first of them without a logprob, and nothing is speculated."""
    body = {"prompt": "abc", "max_tokens": 2, "echo": True, "logprobs": 1, "specd": {"report": True, "k": 3}}
    answers = events(daemon, COMPLETIONS, **body) if stream else [post(daemon, COMPLETIONS, **body)]
    parts = [answer["choices"][0]["logprobs"] for answer in answers]
    found = {key: [one for part in parts for one in part[key]] for key in parts[0]}
    assert found["tokens"] == ["a", "b", "c", "a", "b"]
    assert found["token_logprobs"] == [None, -0.5, -0.5, -0.5, -0.5]
    assert found["top_logprobs"][:2] == [None, {"b": -0.5}]
    assert found["text_offset"] == [0, 1, 2, 3, 4]
    assert answers[-1]["specd"]["not_speculated"] == "prompt logprobs"
    assert answers[-1]["specd"]["drafted"] == 0


def test_a_prompt_can_be_scored_without_a_text(daemon):
    """Test that max_tokens = 0 with echo returns the prompt alone: no token of a text is told or counted."""
    answer = post(daemon, COMPLETIONS, prompt="abc", max_tokens=0, echo=True, logprobs=0)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert answer["usage"]["completion_tokens"] == 0


def test_prompt_logprobs_are_where_vllm_has_them(daemon):
    """Test that each token of the prompt has those of the likeliest by id, with rank and text."""
    by_id = {
        str(B): {"logprob": -0.5, "rank": 1, "decoded_token": "b"},
        str(B + 1): {"logprob": -1.5, "rank": 2, "decoded_token": "c"},
    }
    answer = post(daemon, COMPLETIONS, prompt="ab", max_tokens=1, prompt_logprobs=2)
    assert answer["choices"][0]["prompt_logprobs"] == [None, by_id]
    chat = post(daemon, CHAT, messages=USER, max_tokens=1, prompt_logprobs=0)
    assert [None if one is None else len(one) for one in chat["prompt_logprobs"]] == [None] + [1] * 18


def test_a_stop_string_can_be_kept(daemon):
    """Test that the text ends behind the string when asked so."""
    body = {"prompt": "abcdef", "stop": "cd", "max_tokens": 6, "include_stop_str_in_output": True}
    assert post(daemon, COMPLETIONS, **body)["choices"][0]["text"] == "abcd"
    chunks = events(daemon, COMPLETIONS, **body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abcd"


def test_the_last_message_of_a_chat_can_be_continued(daemon):
    """Test that neither an end of turn nor a new beginning is written behind it, and nothing else changes."""
    messages = [*USER, {"role": "assistant", "content": "I s"}]
    answer = post(daemon, CHAT, messages=messages, continue_final_message=True, max_tokens=60)
    written = "hey<|assistant|>I s"
    assert answer["choices"][0]["message"]["content"].startswith(written * 2)
    bare = post(daemon, CHAT, messages=USER, add_generation_prompt=False, max_tokens=30)
    assert bare["choices"][0]["message"]["content"].startswith("heyhey")


def test_variables_reach_the_template(daemons):
    """Test that chat_template_kwargs are variables of the template."""
    (daemons.model / "chat_template.jinja").write_text("{{ messages[0].content }}{{ mood }}")
    daemon = daemons.start().ready()
    body = {"messages": USER, "max_tokens": 6, "chat_template_kwargs": {"mood": "!!!"}}
    assert post(daemon, CHAT, **body)["choices"][0]["message"]["content"] == "hey!!!"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {"999": 1}),
        ("allowed_token_ids", [999]),
        ("banned_token_ids", [999]),
        ("stop_token_ids", [999]),
    ],
)
def test_a_token_that_does_not_exist_is_named(daemon, name, value):
    """Test that token ids beyond the vocabulary get 400 and the parameter."""
    answer = daemon.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1, name: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, name)
    assert "token id 999 is beyond the vocabulary" in error["message"]


def test_impossible_tokens_have_a_number():
    """Test that minus infinity, the logprob of a token that a mask forbids, becomes a number: JSON has no other."""
    tokens = TokenBytes(byte_tokenizer())
    found = [(A, TokenLogprob(A, -0.5, 1, [(A, -0.5), (B, -math.inf)]))]
    chat = ChatLogprobs(tokens, 2).of(found)["content"][0]["top_logprobs"]
    completion = CompletionLogprobs(tokens, 2).of(found)["top_logprobs"]
    assert (chat[1]["logprob"], completion[0]["b"]) == (-9999.0, -9999.0)
