"""A model's chat template: what it makes of a chat, and whether it knows of tools."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, Self

import jinja2
import jinja2.ext
import jinja2.meta
from jinja2 import nodes
from jinja2.parser import Parser

from specd.http.errors import ApiError
from specd.http.tools import ToolFormat, taught_format

_REFUSALS: Final = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    RecursionError,  # JSON that nests too deep to be written
)
"""How templates fail on what they were given."""


@dataclass(frozen=True, slots=True)
class Chat:
    """What a template is given."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    continues: bool = False
    """The last message goes on."""
    begins_answer: bool = True
    """A message of the assistant's begins at the end."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """The client's own, for templates that know them."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Rendered as transformers does, so that a template means here what it means there."""

    source: str
    special_tokens: Mapping[str, str]
    """`bos_token` and its like, which templates refer to."""
    takes_tools: bool
    tool_format: ToolFormat | None
    """How the model is taught to write calls, where it is a format that is built."""
    render: Callable[..., tuple[list[str], Any]]

    @classmethod
    def load(cls, source: str, special_tokens: Mapping[str, str]) -> Self:
        """Takes seconds: transformers is imported."""
        takes_tools = "tools" in _variables(source)
        return cls(
            source=source,
            special_tokens=special_tokens,
            takes_tools=takes_tools,
            tool_format=taught_format(source) if takes_tools else None,
            render=import_module("transformers.utils.chat_template_utils").render_jinja_template,
        )

    def text(self, chat: Chat) -> str:
        """The chat as the model reads it. Raises `ApiError` when it cannot be rendered."""
        try:
            (text,), _ = self.render(
                conversations=[list(chat.messages)],
                tools=list(chat.tools) or None,
                chat_template=self.source,
                add_generation_prompt=chat.begins_answer,
                continue_final_message=chat.continues,
                **{**self.special_tokens, **chat.variables},
            )
        except _REFUSALS as error:
            message = f"the model's chat template refuses these messages: {error}"
            raise ApiError(400, message, param="messages", code="chat_template") from None
        return text

    def format_for_tools(self) -> ToolFormat:
        """How calls are written. Raises `ApiError` where tools cannot be served."""
        if not self.takes_tools:
            why = (
                "this model's chat template knows of no tools: leave them out, or describe them in a message"
            )
        elif self.tool_format is None:
            why = "this model writes calls of tools in a format that is not built: leave the tools out"
        else:
            return self.tool_format
        raise ApiError(400, why, param="tools", code="no_tools")


class _Generation(jinja2.ext.Extension):
    """transformers' `{% generation %}`, which marks what is trained on."""

    tags = {"generation"}  # noqa: RUF012  jinja's own types say set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Stands for what is in it."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _variables(source: str) -> set[str]:
    """What a template reads from outside; nothing, if it is no template: rendering will say so."""
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols", _Generation])  # noqa: S701  text, not HTML
    try:
        return jinja2.meta.find_undeclared_variables(environment.parse(source))
    except jinja2.TemplateError:
        return set()
