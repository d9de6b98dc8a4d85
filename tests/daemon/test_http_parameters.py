"""What becomes of a body's parameters: the engine's sampling parameters, a grammar, or a sentence."""

import json

import pytest

from engine.api import Grammar
from specd.http.bodies import ChatBody, CompletionBody
from specd.http.encode import Prompt
from specd.http.errors import ApiError
from specd.http.params import sampling
from specd.http.parse import parse

USER = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def completion(**body):
    return parse(CompletionBody, json.dumps({"prompt": "a", **body}).encode())


def chat(**body):
    return parse(ChatBody, json.dumps({"messages": USER, **body}).encode())


def tool(name: str = "f") -> dict:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA}}


@pytest.mark.parametrize(
    ("name", "value", "ours", "given"),
    [
        ("min_tokens", 3, "min_tokens", 3),
        ("temperature", 0, "temperature", 0.0),
        ("min_p", 0.1, "min_p", 0.1),
        ("top_p", 0.9, "top_p", 0.9),
        ("top_k", -1, "top_k", 0),
        ("repetition_penalty", 1.2, "repetition_penalty", 1.2),
        ("presence_penalty", -2, "presence_penalty", -2),
        ("frequency_penalty", 1.5, "frequency_penalty", 1.5),
        ("logit_bias", {"5": -100, "6": 1.5}, "logit_bias", {5: -100, 6: 1.5}),
        ("allowed_token_ids", [1, 2], "allowed_tokens", (1, 2)),
        ("banned_token_ids", [3], "banned_tokens", (3,)),
        ("seed", 7, "seed", 7),
        ("seed", -1, "seed", 2**63 - 1),
        ("stop", "x", "stop", ("x",)),
        ("stop", ["x", "y"], "stop", ("x", "y")),
        ("stop_token_ids", [4], "stop_tokens", (4,)),
        ("include_stop_str_in_output", True, "include_stop", True),
        ("ignore_eos", True, "ignore_eos", True),
        ("prompt_logprobs", 2, "prompt_logprobs", 2),
    ],
)
@pytest.mark.parametrize("body_of", [completion, chat])
def test_each_parameter_reaches_the_engine(body_of, name, value, ours, given):
    """Test that OpenAI's and vLLM's names become the engine's, with the value that was sent."""
    params = sampling(body_of(**{name: value}), Prompt([1]), max_tokens=9)
    assert getattr(params, ours) == given
    assert params.max_tokens == 9


def test_logprobs_are_said_differently_by_the_two_endpoints():
    """Test that completions give a count and chat a switch with a count, and echo asks for those of the prompt."""

    def asked(body):
        params = sampling(body, Prompt([1]), max_tokens=1)
        return params.logprobs, params.prompt_logprobs

    assert asked(completion()) == (None, None)
    assert asked(completion(logprobs=0)) == (0, None)
    assert asked(completion(logprobs=3, echo=True)) == (3, 3)
    assert asked(completion(logprobs=3, echo=True, prompt_logprobs=5)) == (3, 5)
    assert asked(completion(echo=True)) == (None, None)
    assert asked(chat(logprobs=True)) == (0, None)
    assert asked(chat(logprobs=True, top_logprobs=20)) == (20, None)
    assert asked(chat(top_logprobs=0)) == (None, None)


@pytest.mark.parametrize(
    ("body", "kind", "content"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", None),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": SCHEMA},
                }
            },
            "json_schema",
            SCHEMA,
        ),
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA),
        ({"guided_json": json.dumps(SCHEMA)}, "json_schema", SCHEMA),
        ({"guided_choice": ["yes", "no"]}, "choice", ["yes", "no"]),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA),
        ({"structured_outputs": {"choice": ["a"]}}, "choice", ["a"]),
        ({"structured_outputs": {"json_object": True}}, "json_object", None),
    ],
)
def test_a_structure_becomes_a_grammar(body, kind, content):
    """Test that each way to ask for JSON or a choice is the same grammar to the engine."""
    for asked in (completion(**body), chat(**body)):
        assert asked.grammar is not None
        assert asked.grammar.kind == kind
        assert (json.loads(asked.grammar.text) if asked.grammar.text else None) == content


@pytest.mark.parametrize(
    ("body", "grammar"),
    [
        ({"guided_regex": "a+"}, Grammar("regex", "a+")),
        ({"guided_grammar": 'start: "a"'}, Grammar("lark", 'start: "a"')),
        ({"structured_outputs": {"regex": "a+"}}, Grammar("regex", "a+")),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, Grammar("lark", 'start: "a"')),
        ({"response_format": {"type": "text"}}, None),
        ({}, None),
    ],
)
def test_a_regular_expression_or_a_grammar_goes_as_it_is(body, grammar):
    """Test that text that only the engine can read is handed on unchanged, and free text asks for nothing."""
    assert completion(**body).grammar == grammar


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def asks(*messages, **body) -> dict:
    return {"messages": [*USER, *messages], **body}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"n": 129}, "n", "must be at most 128, not 129"),
        ({"n": 0}, "n", "must be at least 1"),
        ({"presence_penalty": 2.1}, "presence_penalty", "must be at most 2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "must be at least 0.01"),
        ({"min_p": 1.5}, "min_p", "must be at most 1"),
        ({"top_k": 2**31}, "top_k", "must be less than"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "must be at most 100"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a.[key]", "must be a token id"),
        ({"logit_bias": [1]}, "logit_bias", "must be an object"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "at least 1 entry"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "is 5, more than max_tokens, which is 4"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "cannot be streamed"),
        ({"bad_words": ["a"]}, "bad_words", "not built in specd yet"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "is missing",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type", "'json_schema'"),
        ({"guided_json": "{"}, "guided_json", "must be a JSON schema"),
        ({"guided_choice": []}, "guided_choice", "at least 1 entry"),
        ({"structured_outputs": {"json": 3}}, "structured_outputs.json", "must be a JSON schema"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "contradict each other"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
            "and response_format contradict each other",
        ),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice", "contradict"),
        ({"top_logprobs": 2}, "top_logprobs", "goes with logprobs = true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "at most 20"),
        ({"continue_final_message": True}, "continue_final_message", "a last message of the assistant's"),
        (
            asks(
                {"role": "assistant", "content": "I"}, continue_final_message=True, add_generation_prompt=True
            ),
            "add_generation_prompt",
            "contradict",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "cannot set messages"),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "is missing"),
        ({"tools": [tool(), tool()]}, "tools", "two functions of the same name"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tools": [tool()], "tool_choice": "maybe"}, "tool_choice", 'must be "none"'),
        (
            {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
            "names the function 'g'",
        ),
        ({"tools": [tool()], "guided_regex": "a"}, "tools", "and a structure for the text are not built"),
        (
            asks({"role": "user", "content": "x", "tool_calls": [CALL]}),
            "messages.1.tool_calls",
            "assistant's",
        ),
        (asks({"role": "assistant"}), "messages.1.content", "is missing"),
        (asks({"role": "tool", "content": "1"}), "messages.1.tool_call_id", "is missing"),
        (
            asks({"role": "user", "content": "1", "tool_call_id": "c"}),
            "messages.1.tool_call_id",
            "the role tool only",
        ),
        (
            asks(
                {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "a"}}]}
            ),
            "messages.1.tool_calls.0.function.arguments",
            "must be a JSON object",
        ),
    ],
)
def test_what_chat_refuses(body, param, words):
    """Test that a value out of range or two that contradict each other are named, with what to do instead."""
    with pytest.raises(ApiError) as refused:
        chat(**body)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert words in refused.value.message


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"max_tokens": 0}, "max_tokens", "must be at least 1, not 0"),
        ({"best_of": 3}, "best_of", "must be n, which is 1"),
        ({"logprobs": True}, "logprobs", "must be a whole number"),
        ({"logprobs": 21}, "logprobs", "at most 20"),
        ({"tools": [tool()]}, "tools", "not a parameter"),
    ],
)
def test_what_completions_refuse(body, param, words):
    """Test the same for the parameters that chat has not."""
    with pytest.raises(ApiError) as refused:
        completion(**body)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert words in refused.value.message


def test_max_tokens_0_is_for_the_prompt_alone():
    """Test that nothing is to be generated where the prompt is what is asked about."""
    assert completion(max_tokens=0, echo=True).token_limit == 0
    assert completion(max_tokens=0, prompt_logprobs=1).token_limit == 0


def test_best_of_may_repeat_n():
    """Test that a client that says both the same is served."""
    assert completion(n=3, best_of=3).n == 3


def test_messages_reach_a_template_as_transformers_has_them():
    """Test that calls have their arguments as objects, a tool's message its id, and unused fields are not there."""
    body = chat(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []},
            {"role": "tool", "content": [{"type": "text", "text": "1"}], "tool_call_id": "c"},
        ]
    )
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert [message.as_template_input() for message in body.messages] == [
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "c"},
    ]


def test_a_whole_number_may_be_written_with_a_point():
    """Test that 4.0 is 4, wherever it stands: JSON Schema, and so the OpenAPI document, makes no difference."""
    body = completion(max_tokens=4.0, prompt=[1.0, 2], specd={"k": 2.0}, temperature=1.0)
    assert (body.max_tokens, body.prompt, body.specd.k, body.temperature) == (4, [1, 2], 2, 1.0)
