"""What may stand in a request's body."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError


class Body(BaseModel):
    """Strict: no coercion, no unknown keys, no NaN."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


def _stop_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _one_prompt(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise PydanticCustomError("prompt_type", "must be a string or a list of token ids")
    if not value:
        raise PydanticCustomError("prompt_empty", "must not be empty")
    if isinstance(value, list) and isinstance(value[0], str | list):
        raise PydanticCustomError(
            "many_prompts", "several prompts in one request are not built: send one each"
        )
    if isinstance(value, list) and not all(type(token) is int and token >= 0 for token in value):
        raise PydanticCustomError("prompt_tokens", "token ids must be whole numbers of at least 0")
    return value


def _flat_text(value: Any) -> Any:
    """Message content given as parts; only text parts can be served."""
    if not isinstance(value, list):
        return value
    if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in value):
        raise PydanticCustomError(
            "parts", "may hold parts of type text only: this server takes no images or audio"
        )
    return "".join(part["text"] for part in value)


class SpecdExtension(Body):
    """The body key `specd`."""

    speculate: Literal["auto", "off"] = "auto"
    k: int | None = Field(None, ge=0, le=16)
    traffic_class: str = Field("default", alias="class", pattern=r"^[A-Za-z0-9_.-]+$", max_length=64)
    report: bool = False

    @model_validator(mode="after")
    def _no_contradiction(self) -> Self:
        if self.speculate == "off" and self.k:
            raise PydanticCustomError(
                "contradiction", 'speculate = "off" and k > 0 contradict each other: drop one'
            )
        return self


class StreamOptions(Body):
    """OpenAI's `stream_options`."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Generation(Body):
    """What both endpoints share."""

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, lt=2**31)
    seed: int | None = None
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=1000)]], BeforeValidator(_stop_list)
    ] = Field([], max_length=16)
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    user: str = Field("default", max_length=512)
    specd: SpecdExtension = SpecdExtension()

    @property
    def token_limit(self) -> int | None:
        """Tokens asked for, if any number was."""
        return self.max_tokens

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if "stream_options" in self.model_fields_set and not self.stream:
            raise PydanticCustomError(
                "no_stream", "stream_options goes with stream = true: add it or drop them"
            )
        return self


class CompletionBody(Generation):
    """`POST /v1/completions`."""

    prompt: Annotated[str | list[int], BeforeValidator(_one_prompt)]


class Message(Body):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_flat_text)]
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        """Clients send an answer back as they got it, with the fields it did not use."""
        if not isinstance(value, dict):
            return value
        return {key: part for key, part in value.items() if part is not None and part != []}

    def as_template_input(self) -> dict[str, str]:
        """As chat templates know it; few have heard of "developer", the newer name of "system"."""
        role = "system" if self.role == "developer" else self.role
        named = {} if self.name is None else {"name": self.name}
        return {"role": role, "content": self.content, **named}


class ChatBody(Generation):
    """`POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)

    @property
    def token_limit(self) -> int | None:
        """The newer name wins."""
        return self.max_completion_tokens or self.max_tokens
