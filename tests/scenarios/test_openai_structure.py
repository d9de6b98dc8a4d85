"""Structured output and calls of tools from a real engine with random weights: it is the grammar that makes them."""

import json
from typing import Any

import openai
import pytest

from tests.daemon.daemon_process import VLLM
from tests.scenarios.test_openai_client import text

BOTH = pytest.mark.parametrize("specd", [{"speculate": "off"}, {"k": 6}], ids=["plain", "k=6"])
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "unit": {"enum": ["cm", "inch"]}},
    "required": ["ok", "unit"],
    "additionalProperties": False,
}


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA}}


def ask(client: openai.OpenAI, specd: dict[str, Any], **body: Any) -> Any:
    known = {"response_format", "tools", "tool_choice", "parallel_tool_calls", "stream", "n", "logprobs"}
    return client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "the target decides"}],
        max_tokens=120,
        temperature=0.8,
        **({} if VLLM else {"seed": 1}),
        extra_body={"specd": {"report": True, **specd}} | {n: v for n, v in body.items() if n not in known},
        **{n: v for n, v in body.items() if n in known},
    )


@BOTH
@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        {"guided_json": SCHEMA},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    ],
    ids=["response_format", "guided", "structured_outputs"],
)
def test_a_schema_is_kept(client: openai.OpenAI, specd: dict[str, Any], body: dict[str, Any]) -> None:
    """Test that each way to give a schema makes an object of it, with drafts and without."""
    answer = ask(client, specd, **body)
    found = json.loads(text(answer))
    assert set(found) == {"ok", "unit"}
    assert found["unit"] in {"cm", "inch"}
    assert answer.choices[0].finish_reason == "stop"


@BOTH
def test_a_choice_or_an_expression_is_kept(client: openai.OpenAI, specd: dict[str, Any]) -> None:
    """Test that each of several texts is one of the choices, or matches."""
    several = ask(client, specd, guided_choice=["yes", "no", "perhaps"], n=4)
    assert {choice.message.content for choice in several.choices} <= {"yes", "no", "perhaps"}
    assert text(ask(client, specd, guided_regex="ab{3}c")) == "abbbc"
    assert text(ask(client, specd, guided_grammar='start: "x" | "y"')) in {"x", "y"}


@BOTH
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"cut", "glue"}),
        ({"type": "function", "function": {"name": "glue"}}, {"glue"}),
    ],
    ids=["required", "named"],
)
def test_a_call_that_is_asked_for_is_valid(
    client: openai.OpenAI, specd: dict[str, Any], stream: bool, choice: Any, names: set[str]
) -> None:
    """Test that even random weights call a function, the named one if one is, with arguments by its schema."""
    answer = ask(
        client,
        specd,
        tools=[tool("cut"), tool("glue")],
        tool_choice=choice,
        parallel_tool_calls=False,
        stream=stream,
    )
    if stream:
        chunks = [chunk.choices[0] for chunk in answer]
        (call,) = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
        reason = chunks[-1].finish_reason
        assert not any(chunk.delta.content for chunk in chunks)
    else:
        (call,) = answer.choices[0].message.tool_calls
        reason = answer.choices[0].finish_reason
        assert answer.choices[0].message.content is None
    assert reason == "tool_calls"
    assert call.function.name in names
    assert set(json.loads(call.function.arguments)) == {"ok", "unit"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_is_none_is_the_clients_fault(client: openai.OpenAI, stream: bool) -> None:
    """Test that what only the engine can tell is a bad request too, and not an event of a stream."""
    with pytest.raises(openai.BadRequestError):
        ask(client, {}, guided_regex="(", stream=stream)
