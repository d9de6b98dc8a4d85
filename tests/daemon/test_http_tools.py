"""Tools in a chat: what the model is told, and what becomes of its calls. The fake engine says what it was told."""

import json
from collections.abc import Iterator

import openai
import pytest

from tests.daemon.conftest import TOOL_TEMPLATE, Daemons
from tests.daemon.daemon_process import DaemonProcess

CHAT = "/v1/chat/completions"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
LIMIT = {"max_tokens": 200}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory) -> Iterator[DaemonProcess]:
    daemons = Daemons(tmp_path_factory.mktemp("served"))
    (daemons.model / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    yield daemons.start("[engine]\nmax_context = 2000").ready()
    daemons.close()


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def says(text: str) -> list[dict]:
    """A chat to which the fake engine answers with this text: end of sequence is a part of it."""
    return [{"role": "user", "content": f"{text}</s>"}]


def test_calls_are_no_text(client):
    """Test that the official client finds each call with an id, and the text before them."""
    answer = client.chat.completions.create(
        model="tiny", messages=says(f"Let me see.\n{CALL}\n{CALL}"), tools=[ADD], **LIMIT
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert [call.function.name for call in choice.message.tool_calls] == ["add", "add"]
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [{"a": 1}] * 2
    assert len({call.id for call in choice.message.tool_calls}) == 2


def test_an_answer_that_is_a_call_has_no_content(client):
    """Test that content is null where there is nothing but a call."""
    answer = client.chat.completions.create(model="tiny", messages=says(CALL), tools=[ADD], **LIMIT)
    assert answer.choices[0].message.content is None


def test_calls_stream_with_their_index(client):
    """Test that deltas have text, then each call under its own index, then the reason."""
    stream = client.chat.completions.create(
        model="tiny", messages=says(f"See: {CALL}{CALL}"), tools=[ADD], stream=True, **LIMIT
    )
    chunks = [chunk.choices[0] for chunk in stream]
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "See:"
    assert [(call.index, call.type, call.function.name) for call in calls] == [
        (0, "function", "add"),
        (1, "function", "add"),
    ]
    assert [json.loads(call.function.arguments) for call in calls] == [{"a": 1}] * 2
    assert chunks[-1].finish_reason == "tool_calls"


def test_an_answer_goes_back_with_the_tools_result(client):
    """Test that the next round's messages, the client's own object among them, are rendered."""
    first = client.chat.completions.create(model="tiny", messages=says(CALL), tools=[ADD], **LIMIT)
    message = first.choices[0].message
    answer = client.chat.completions.create(
        model="tiny",
        messages=[
            message.model_dump(),
            {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "it is 3</s>"},
        ],
        tools=[ADD],
        **LIMIT,
    )
    assert answer.choices[0].message.content == "<|assistant|><|tool|>it is 3"


def test_tools_are_told_as_they_were_sent(client):
    """Test that the template sees the tools to the letter, and none with tool_choice = none, and calls stay text."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": ""}], "tools": [ADD], **LIMIT}
    told = client.chat.completions.create(**body).choices[0].message.content
    assert told.startswith("<|assistant|>" + json.dumps([ADD]))
    silent = client.chat.completions.create(tool_choice="none", **(body | {"messages": says(CALL)}))
    assert silent.choices[0].message.content == CALL
    assert silent.choices[0].finish_reason == "stop"


def test_each_text_has_its_own_calls(client):
    """Test that calls of several texts are not mixed up: the second begins one token later."""
    answer = client.chat.completions.create(
        model="tiny", messages=says(f"x{CALL}"), tools=[ADD], n=5, **LIMIT
    )
    assert [len(choice.message.tool_calls or []) for choice in answer.choices] == [1, 1, 1, 1, 0]
    assert [choice.message.content for choice in answer.choices[:4]] == ["x", "x", "x", None]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "knows of no tools"),
        ("{{ tools }} <tool_call><function=f></function></tool_call>", "a format that is not built"),
    ],
)
def test_a_model_without_tools_says_so(daemons, template, words):
    """Test that tools are refused where the template ignores them, or teaches another way to call them."""
    if template is not None:
        (daemons.model / "chat_template.jinja").write_text(template)
    answer = daemons.start().ready().post(CHAT, {"messages": says("x"), "tools": [ADD]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    assert words in answer.json()["error"]["message"]
