"""From a body to what the engine is given: tokens, and what the text will have to be read as."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from engine.api import Grammar
from specd.http.bodies import ChatBody, CompletionBody
from specd.http.chat_template import Chat
from specd.http.prompt import PromptEncoder
from specd.http.room import Room
from specd.http.tools import PlainReader, Reader


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a text follows."""

    tokens: list[int]
    echo: str = ""
    """Comes before the text."""
    grammar: Grammar | None = None
    reader: Callable[[], Reader] = PlainReader
    """Finds calls of tools in the text."""
    stop: tuple[str, ...] = ()
    """Ends the text, beside what the client wants to end it."""


async def encode_completion(encoder: PromptEncoder, body: CompletionBody, room: Room) -> Prompt:
    """Text goes through the tokenizer, unless it cannot fit, tokens are checked. Raises `ApiError`."""
    if isinstance(body.prompt, str):
        tokens, text = await encoder.text(body.prompt, room), body.prompt
    else:
        encoder.check(body.prompt, "prompt")
        tokens, text = body.prompt, encoder.tokenizer.decode(body.prompt, skip_special_tokens=True)
    return Prompt(tokens, echo=text if body.echo else "", grammar=body.grammar)


async def encode_chat(encoder: PromptEncoder, body: ChatBody, room: Room) -> Prompt:
    """Through the model's chat template, unless it cannot fit. Raises `ApiError`."""
    tools = body.callable_tools
    writes = encoder.chat_template.format_for_tools() if tools else None
    chat = Chat(
        [message.as_template_input() for message in body.messages],
        tools=[tool.as_template_input() for tool in tools],
        continues=body.continue_final_message,
        begins_answer=not body.continue_final_message and body.add_generation_prompt is not False,
        variables=body.chat_template_kwargs,
    )
    tokens = await encoder.chat(chat, room)
    if writes is None:
        return Prompt(tokens, grammar=body.grammar)
    functions = [tool.function for tool in tools]
    reader = partial(writes.reader, {function.name for function in functions})
    if body.tool_choice.mode == "auto":
        return Prompt(tokens, reader=reader, stop=() if body.parallel_tool_calls else writes.ends_one)
    asked_for = [one for one in functions if body.tool_choice.name in {None, one.name}]
    return Prompt(tokens, grammar=writes.grammar(asked_for, many=body.parallel_tool_calls), reader=reader)
