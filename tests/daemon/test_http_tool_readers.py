"""Calls of tools in a text that comes in pieces of any size."""

import json

import llguidance
import pytest

from specd.http.messages import FunctionSpec
from specd.http.tools import BARE, TAGGED, Call, taught_format

NAMES = {"f", "g"}
F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
G = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
UNSENDABLE = [  # JSON to Python, but neither UTF-8 nor JSON again
    '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>',
    '<tool_call>{"name": "\\ud800"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>',
]
CALL_F, CALL_G = Call("f", '{"a": 1}'), Call("g", "{}")


def read(written, text: str, size: int) -> tuple[str, list[Call]]:
    """All that a reader makes of a text, which it gets in pieces of this size."""
    reader = written.reader(NAMES)
    pieces = [reader.push(text[at : at + size]) for at in range(0, len(text), size)]
    pieces.append(reader.flush())
    return "".join(piece.text for piece in pieces), [call for piece in pieces for call in piece.calls]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        ("plain text, a < b", "plain text, a < b", []),
        ("ends with <tool_", "ends with <tool_", []),
        (" spaced \n", " spaced \n", []),
        (F, "", [CALL_F]),
        (f"Let me see.\n{F}", "Let me see.", [CALL_F]),
        (f"{F}\n{G}\n", "", [CALL_F, CALL_G]),
        (f"{F}\nand then", "\nand then", [CALL_F]),
        (F.removesuffix("</tool_call>"), "", [CALL_F]),
        (F.removesuffix("call>"), "", [CALL_F]),
        ('<tool_call>{"name": "f", "arg', '<tool_call>{"name": "f", "arg', []),
        ("<tool_call>oops</tool_call>" + G, "<tool_call>oops</tool_call>", [CALL_G]),
        ('<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', []),
        ('<tool_call>{"name": "f", "arguments": NaN}</tool_call>',) * 2 + ([],),
        (
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
            "",
            [Call("f", '{"a": "</tool_call>"}')],
        ),
        (f"{F} and \n so", " and \n so", [CALL_F]),
        *((unsendable, unsendable, []) for unsendable in UNSENDABLE),
    ],
)
def test_tagged_calls_are_found_however_the_text_comes(text, said, calls, size):
    """Test that calls are found, what is none stays text, and neither depends on how the text was cut."""
    assert read(TAGGED, text, size) == (said, calls)


def test_nesting_without_end_is_text():
    """Test that brackets too deep to be read are no fault of the server's."""
    deep = "<tool_call>" + "[" * 100_000 + "</tool_call>"
    assert read(TAGGED, deep, 50_000) == (deep, [])


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        ("plain text", "plain text", []),
        (' {"name": "f", "parameters": {"a": 1}} ', "", [CALL_F]),
        ('{"name": "Ada", "parameters": {}}', '{"name": "Ada", "parameters": {}}', []),
        ('{"answer": 42}', '{"answer": 42}', []),
        ('{"name": "f", "parameters": {}} so', '{"name": "f", "parameters": {}} so', []),
        ('{"name": "f"', '{"name": "f"', []),
    ],
)
def test_a_bare_call_is_the_whole_text(text, said, calls, size):
    """Test that JSON which is a call of a known tool is one, and any other JSON is an answer."""
    assert read(BARE, text, size) == (said, calls)


def test_text_is_not_held_back_longer_than_needed():
    """Test that a stream goes on while nothing looks like a call."""
    reader = TAGGED.reader(NAMES)
    assert [reader.push(piece).text for piece in ("Hello", " world", " <", "b")] == [
        "Hello",
        " world",
        "",
        " <b",
    ]


FUNCTIONS = [
    FunctionSpec(name="f", parameters={"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"}),
    FunctionSpec(name="g"),
]


@pytest.fixture(scope="module")
def letters() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer("byte")


def conforms(tokenizer: llguidance.LLTokenizer, grammar: str, text: str) -> bool:
    matcher = llguidance.LLMatcher(tokenizer, grammar)
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("written", "many", "text", "good"),
    [
        (TAGGED, True, F.replace('{"a": 1}', "12"), True),
        (TAGGED, True, '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>', True),
        (TAGGED, True, "\n".join(['<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'] * 2), True),
        (TAGGED, False, "\n".join(['<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'] * 2), False),
        (TAGGED, True, F, False),
        (TAGGED, True, '<tool_call>\n{"name": "h", "arguments": {}}\n</tool_call>', False),
        (TAGGED, True, "Let me see.", False),
        (BARE, True, '{"name": "f", "parameters": 3}', True),
        (BARE, True, '{"name": "f", "parameters": "a"}', False),
    ],
)
def test_the_grammar_of_a_required_call(letters, written, many, text, good):
    """Test that exactly texts of calls by the schemas conform, a schema's own references included."""
    grammar = written.grammar(FUNCTIONS, many=many)
    assert grammar.kind == "lark"
    assert conforms(letters, grammar.text, text) is good


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ('return a json object within <tool_call></tool_call>: {"name": …}', TAGGED),
        ('Respond in the format {"name": function name, "parameters": dictionary}', BARE),
        ('Respond in the format {\\"name\\": function name, \\"parameters\\": dictionary}', BARE),
        ("<tool_call>\n<function=f>\n<parameter=a>", None),
        ("[TOOL_CALLS]", None),
    ],
)
def test_the_format_is_the_one_that_the_template_teaches(template, found):
    """Test that formats with the same tags and other contents are not taken for one that is built."""
    assert taught_format(template) is found


def test_a_call_reads_back_as_json():
    """Test that arguments keep letters beyond ASCII, and are JSON."""
    (call,) = read(TAGGED, F.replace("1", '"é\\n"'), 2)[1]
    assert json.loads(call.arguments) == {"a": "é\n"}
    assert "é" in call.arguments
