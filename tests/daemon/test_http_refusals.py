"""Bad requests: each gets one clear sentence, the right status, and leaves nothing behind."""

import json
from collections.abc import Iterator

import httpx2
import pytest

from tests.daemon.conftest import Daemons
from tests.daemon.daemon_process import DEADLINE, DaemonProcess, wait_until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
ARGUMENTS = "messages.1.tool_calls.0.function.arguments"
NESTED = '{"a":' * 900 + "1" + "}" * 900
WRITES_CALLS = (
    "{% for message in messages %}{% for call in message.tool_calls or [] %}"
    "{{ call.function.arguments | tojson }}{% endfor %}{{ message.content }}{% endfor %}"
)


def called(arguments: str) -> dict:
    """An answer that was a call."""
    call = {"id": "call_1", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call]}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory) -> Iterator[DaemonProcess]:
    daemons = Daemons(tmp_path_factory.mktemp("served"))
    (daemons.model / "chat_template.jinja").write_text(WRITES_CALLS)
    yield daemons.start(server="max_body_bytes = 20000").ready()
    daemons.close()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(daemon):
    """After every refusal the daemon is ready and holds no request."""
    yield
    wait_until(lambda: daemon.status()["load"]["admitted"] == 0, "all places to be free")
    assert daemon.get("/ready").status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        (COMPLETIONS, {}, "prompt", "prompt is missing"),
        (COMPLETIONS, {"prompt": ""}, "prompt", "must not be empty"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt", "send one each"),
        (COMPLETIONS, {"prompt": [1, -2]}, "prompt", "at least 0"),
        (COMPLETIONS, {"prompt": [99999]}, "prompt", "99999 is beyond the vocabulary, which has 263"),
        (COMPLETIONS, {"prompt": "a", "temperature": -1}, "temperature", "must be at least 0"),
        (COMPLETIONS, {"prompt": "a", "temperature": "hot"}, "temperature", "must be a number, not 'hot'"),
        (COMPLETIONS, {"prompt": "a", "top_p": 0}, "top_p", "must be greater than 0"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, "max_tokens", "must be at least 1, not 0"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 1.5}, "max_tokens", "must be a whole number"),
        (COMPLETIONS, {"prompt": "a", "seed": "x"}, "seed", "must be a whole number"),
        (COMPLETIONS, {"prompt": "a", "stop": [""]}, "stop.0", "at least 1 character"),
        (COMPLETIONS, {"prompt": "a", "stream": "yes"}, "stream", "must be true or false"),
        (COMPLETIONS, {"prompt": "a", "stream_options": {"include_usage": True}}, None, "stream = true"),
        (COMPLETIONS, {"prompt": "a", "temprature": 1}, "temprature", "not a parameter that specd knows"),
        (COMPLETIONS, {"prompt": "a", "suffix": "z"}, "suffix", "not built in specd yet"),
        (COMPLETIONS, {"prompt": "a", "specd": {"k": 17}}, "specd.k", "must be at most 16"),
        (COMPLETIONS, {"prompt": "a", "specd": {"klass": "x"}}, "specd.klass", "not a parameter"),
        (COMPLETIONS, {"prompt": "a", "specd": {"class": "a b"}}, "specd.class", "made of letters"),
        (COMPLETIONS, {"prompt": "a", "specd": {"class": "a" * 65}}, "specd.class", "at most 64 characters"),
        (COMPLETIONS, {"prompt": "a", "specd": {"speculate": "off", "k": 3}}, "specd", "contradict"),
        (CHAT, {"messages": []}, "messages", "must have at least 1 entry"),
        (CHAT, {"messages": [{"role": "judge", "content": "x"}]}, "messages.0.role", "'user'"),
        (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id", "is missing"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages.0.content", "is missing"),
        (CHAT, {"messages": [*USER, called('{"a": "\\ud800"}')]}, ARGUMENTS, "must be a JSON object"),
        (CHAT, {"messages": [*USER, called('{"a": NaN}')]}, ARGUMENTS, "must be a JSON object"),
        (CHAT, {"messages": [*USER, called(NESTED)]}, "messages", "template refuses these messages"),
        (COMPLETIONS, {"prompt": "a", "min_tokens": 1e300}, "min_tokens", "must be less than"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages.0.content",
            "no images",
        ),
        (CHAT, {"messages": USER, "reasoning_effort": "low"}, "reasoning_effort", "not built in specd yet"),
    ],
)
def test_a_bad_parameter_is_named(daemon, path, body, param, words):
    """Test that each fault gets 400, the parameter and a sentence, in OpenAI's envelope."""
    answer = daemon.post(path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert words in error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"prompt": NaN}', b"[" * 5000])
def test_a_body_that_is_no_json_object(daemon, body):
    """Test that what is not a JSON object gets 400 and says so."""
    answer = httpx2.post(daemon.url + COMPLETIONS, content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
    assert "JSON" in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context(daemon, stream):
    """Test that it gets 400 with the numbers, and no stream is opened."""
    answer = daemon.post(COMPLETIONS, {"prompt": "a" * 300, "stream": stream})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "300 tokens" in error["message"]
    assert "256" in error["message"]


def test_max_tokens_beyond_the_context(daemon):
    """Test that an answer that cannot fit is refused with what would fit."""
    error = daemon.post(COMPLETIONS, {"prompt": "abc", "max_tokens": 10**9}).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
    assert "room for 253" in error["message"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large(daemon, chunked):
    """Test that a body beyond the limit gets 413 and not a reset, with or without a declared length."""
    body = json.dumps({"prompt": "a" * 3_000_000}).encode()
    content = (body[at : at + 100_000] for at in range(0, len(body), 100_000)) if chunked else body
    answer = httpx2.post(daemon.url + COMPLETIONS, content=content, timeout=DEADLINE)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


def test_a_model_that_is_not_served(daemon):
    """Test that another model's name gets 404 and the name that is served."""
    answer = daemon.post(COMPLETIONS, {"prompt": "a", "model": "gpt-4"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "'tiny'" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/embeddings", 404), ("GET", COMPLETIONS, 405), ("GET", "/v1/models/", 404)],
)
def test_a_path_or_method_that_is_not_there(daemon, method, path, status):
    """Test that the framework's own refusals have the envelope too."""
    answer = httpx2.request(method, daemon.url + path)
    assert answer.status_code == status
    assert path in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_engine_gives_one_request_up(daemon, stream):
    """Test that an error of the engine is a 500 with its sentence, in a stream too as long as nothing was sent."""
    answer = daemon.post(COMPLETIONS, {"prompt": "<fail>", "max_tokens": 4, "stream": stream})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_error")
    assert answer.json()["error"]["message"] == "the fake engine was told to fail"


def test_no_prompt_is_ever_logged(daemon):
    """Test that the log of all these refusals has neither prompts nor lines that a client made up."""
    daemon.post(COMPLETIONS, {"prompt": "very-secret", "foo\nERROR forged": 1})
    assert "very-secret" not in daemon.log
    assert "forged" not in daemon.log
