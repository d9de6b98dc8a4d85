"""Good requests, over a real socket to a real daemon with a fake engine, which echoes the prompt."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.daemon.conftest import Daemons
from tests.daemon.daemon_process import DaemonProcess
from tests.daemon.fake_engine import EOS

A, B, C = (ord(letter) - ord("!") + 7 for letter in "abc")
"""Token ids of letters in the tiny tokenizer: seven specials, then the printable characters."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory) -> Iterator[DaemonProcess]:
    daemons = Daemons(tmp_path_factory.mktemp("served"))
    yield daemons.start().ready()
    daemons.close()


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def complete(daemon: DaemonProcess, **body: object) -> dict:
    answer = daemon.post("/v1/completions", {"max_tokens": 8, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(daemon: DaemonProcess, path: str, **body: object) -> list[dict]:
    """The chunks of a complete stream."""
    answer = daemon.post(path, {"stream": True, **body})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *chunks, end, rest = answer.text.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


def test_completion_counts_its_tokens(daemon):
    """Test that a completion has the text, the usage to the token, and why it ended."""
    body = complete(daemon, model="tiny", prompt="abc", max_tokens=5)
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": "abcab", "logprobs": None, "finish_reason": "length"}]
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert "specd" not in body


def test_token_ids_are_a_prompt(daemon):
    """Test that a list of token ids goes to the engine as it is."""
    assert complete(daemon, prompt=[A, B], max_tokens=3)["choices"][0]["text"] == "aba"


def test_end_of_sequence_stops_unless_ignored(daemon):
    """Test that the end-of-sequence token ends the text, counts as a token, and can be ignored."""
    stopped = complete(daemon, prompt=[A, EOS, B])
    assert (stopped["choices"][0]["text"], stopped["choices"][0]["finish_reason"]) == ("a", "stop")
    assert stopped["usage"]["completion_tokens"] == 2
    ignored = complete(daemon, prompt=[A, EOS, B], ignore_eos=True)
    assert ignored["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stop", ["cd", ["x", "cd", "d"]])
def test_text_is_cut_before_a_stop_string(daemon, stop):
    """Test that a stop string ends the text and is not part of it, streamed or not."""
    body = complete(daemon, prompt="abcdef", stop=stop, max_tokens=50)
    assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == ("ab", "stop")
    chunks = events(daemon, "/v1/completions", prompt="abcdef", stop=stop, max_tokens=50)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "ab"


def test_a_character_of_many_bytes_is_never_torn(daemon):
    """Test that a chunk holds whole characters although each byte is a token, and an unfinished one shows."""
    chunks = events(daemon, "/v1/completions", prompt="é€", max_tokens=7, specd={"k": 0})
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(texts) == "é€é"
    assert all("\ufffd" not in text for text in texts)
    assert complete(daemon, prompt="é€", max_tokens=3)["choices"][0]["text"] == "é\ufffd"


def test_max_tokens_unset_takes_what_fits(daemon):
    """Test that without max_tokens the answer ends at the context's end, not with an error."""
    body = daemon.post("/v1/completions", {"prompt": "abc"}).json()
    assert body["usage"]["total_tokens"] == 256


def test_chat_goes_through_the_template(client):
    """Test that the official client gets a chat answer, the prompt being what the template writes."""
    answer = client.chat.completions.create(
        model="tiny",
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]},
        ],
        max_completion_tokens=60,
    )
    # Special tokens are not shown: <s>, <|user|> and <|end|> are such, <|system|> is plain text here.
    assert answer.choices[0].message.content.startswith("<|system|>be briefhello<|assistant|>")
    assert answer.choices[0].finish_reason == "length"
    written = 1 + len("<|system|>be brief") + 1 + 1 + len("hello") + 1 + len("<|assistant|>")
    assert answer.usage.prompt_tokens == written


def test_chat_streams_to_the_official_client(client):
    """Test that role, text, finish, usage and the report arrive in a stream as the client reads them."""
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hey"}],
        max_tokens=9,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"specd": {"report": True, "class": "greeting"}},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "hey<|a"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 9
    assert chunks[-1].specd["drafted"] > 0
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_report_tells_what_speculation_did(daemon):
    """Test that the report has every part of the contract, by position and by k."""
    report = complete(daemon, prompt="ab", max_tokens=7, specd={"report": True, "k": 2})["specd"]
    assert report.pop("target_revision")
    # The fake engine accepts 2 of 2, then 1 of 2, and so on: 3 + 2 + 2 (the last one cut) tokens.
    assert report == {
        "rounds": 3,
        "drafted": 6,
        "examined": [3, 3],
        "accepted": [3, 2],
        "k_histogram": {"2": 3},
        "proposers": {"ngram": 3},
        "draft_revision": "ngram-2-5",
    }


def test_report_is_in_the_finishing_chunk_without_usage(daemon):
    """Test that a stream that asked for no usage carries the report where it says why it ended."""
    chunks = events(daemon, "/v1/completions", prompt="ab", max_tokens=4, specd={"report": True})
    assert [("specd" in chunk) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert all("usage" not in chunk for chunk in chunks)


def test_speculation_can_be_switched_off(daemon):
    """Test that speculate = off reaches the engine: every round has k = 0."""
    report = complete(daemon, prompt="ab", max_tokens=4, specd={"speculate": "off", "report": True})["specd"]
    assert report["k_histogram"] == {"0": 4}


def test_parameters_that_ask_for_nothing_are_taken(daemon):
    """Test that a client which spells out OpenAI's defaults is served."""
    neutral = {
        "n": 1,
        "best_of": 1,
        "echo": False,
        "logprobs": None,
        "suffix": None,
        "presence_penalty": 0.0,
        "frequency_penalty": 0,
        "logit_bias": {},
        "metadata": {"a": "b"},
        "store": False,
        "user": "someone",
        "temperature": 0,
        "top_p": 1,
        "top_k": -1,
        "seed": -5,
        "stop": None,
    }
    assert complete(daemon, prompt="ab", **neutral)["choices"][0]["text"] == "abababab"


def test_many_at_once_get_their_own_text(daemon):
    """Test that concurrent requests are not mixed up."""
    prompts = [f"<{number}>" for number in range(24)]
    with ThreadPoolExecutor(12) as pool:
        bodies = list(pool.map(lambda prompt: complete(daemon, prompt=prompt, max_tokens=20), prompts))
    for prompt, body in zip(prompts, bodies, strict=True):
        assert body["choices"][0]["text"] == (prompt * 20)[:20]


def test_models_health_and_ready(daemon, client):
    """Test that the model is listed under its name and the probes say yes."""
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert daemon.get("/health").status_code == 200
    assert daemon.get("/ready").status_code == 200


def test_the_daemon_never_imports_torch(daemon):
    """Test that no library of torch is mapped into the daemon after it has served chat and completions."""
    maps = Path(f"/proc/{daemon.process.pid}/maps").read_text()
    assert "tokenizers" in maps
    assert "torch" not in maps
