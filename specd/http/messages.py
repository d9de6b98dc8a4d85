"""A chat as it stands in a request's body: messages, and the tools that the model may call."""

from typing import Annotated, Any, Literal, Self

import msgspec
from pydantic import ConfigDict, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from specd.http.fields import Body, Content, fault

_NAME = r"^[A-Za-z0-9_.-]+$"


class FunctionSpec(Body):
    """A function that the model may call."""

    name: str = Field(pattern=_NAME, max_length=64)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of an object; None for a function that takes nothing."""
    strict: bool | None = None


class Tool(Body):
    """Functions are the only ones."""

    type: Literal["function"]
    function: FunctionSpec

    def as_template_input(self) -> dict[str, Any]:
        """As the client wrote it."""
        return self.model_dump(exclude_unset=True)


class _FunctionName(Body):
    name: str


class _NamedTool(Body):
    type: Literal["function"]
    function: _FunctionName


class ToolChoice(Body):
    """Whether, and what, the model calls: freely ("auto"), never, or always, one function's name at most."""

    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None


def _tool_choice(value: Any) -> ToolChoice:
    if value in ("none", "auto", "required"):
        return ToolChoice(mode=value)
    match value:
        case {"type": "function", "function": {"name": str(name)}} if len(value) == 2:
            return ToolChoice(mode="required", name=name)
    raise PydanticCustomError(
        "tool_choice",
        'must be "none", "auto", "required" or {{"type": "function", "function": {{"name": "…"}}}}',
    )


AnyToolChoice = Annotated[
    ToolChoice,
    PlainValidator(_tool_choice, json_schema_input_type=Literal["none", "auto", "required"] | _NamedTool),
]


class FunctionCall(Body):
    """What the model called, sent back to it."""

    name: str
    arguments: str

    @model_validator(mode="after")
    def _arguments_are_json(self) -> Self:
        if not isinstance(self.parsed, dict):
            raise fault("arguments", "must be a JSON object, written as a string")
        return self

    @property
    def parsed(self) -> Any:
        """Templates write the arguments as JSON themselves. Read as bodies are: without halves of characters or NaN."""
        try:
            return msgspec.json.decode(self.arguments)
        except (msgspec.DecodeError, RecursionError):
            return None


class ToolCall(Body):
    """One call of an earlier answer."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None

    def as_template_input(self) -> dict[str, Any]:
        """With the arguments as an object, as transformers' templates take them."""
        function = {"name": self.function.name, "arguments": self.function.parsed}
        return {"id": self.id, "type": self.type, "function": function}


class Message(Body):
    """One turn of a chat."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"enum": [None, []]}})

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        """Clients send an answer back as they got it, with the fields it did not use."""
        if not isinstance(value, dict):
            return value
        return {key: part for key, part in value.items() if part is not None and part != []}

    @model_validator(mode="after")
    def _parts_of_its_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise fault("tool_calls", f"belong to the assistant's messages, not to the {self.role}'s")
        if self.content is None and not self.tool_calls:
            raise fault("content", "is missing")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            why = "is missing: a tool's message says which call it answers"
            raise fault("tool_call_id", why if self.role == "tool" else "goes with the role tool only")
        return self

    def as_template_input(self) -> dict[str, Any]:
        """As chat templates know it; few have heard of "developer", the newer name of "system"."""
        found: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content or "",
        }
        found |= {} if self.name is None else {"name": self.name}
        found |= {} if self.tool_call_id is None else {"tool_call_id": self.tool_call_id}
        if self.tool_calls:
            found["tool_calls"] = [call.as_template_input() for call in self.tool_calls]
        return found
