"""What may stand in a request's body."""

from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from engine.classes import LONGEST, PATTERN
from specd.http.fields import Bias, Body, Prompt, Stops, TokenId, fault
from specd.http.messages import AnyToolChoice, Message, Tool, ToolChoice
from specd.http.structured import Structured

_OURS: Final = frozenset(
    {
        "add_generation_prompt",
        "bos_token",
        "chat_template",
        "continue_final_message",
        "conversations",
        "documents",
        "eos_token",
        "messages",
        "return_assistant_tokens_mask",
        "tools",
    }
)
"""Variables of chat templates that are not the client's to set."""


class SpecdExtension(Body):
    """The body key `specd`."""

    speculate: Literal["auto", "off"] = "auto"
    k: int | None = Field(None, ge=0, le=16)
    k_max: int | None = Field(None, ge=0, le=16)
    traffic_class: str = Field("default", alias="class", pattern=PATTERN, max_length=LONGEST)
    report: bool = False
    timeout: float | None = Field(None, gt=0, le=86400)

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


class Generation(Structured):
    """What both endpoints share."""

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int = Field(0, ge=0, lt=2**31)
    temperature: float = Field(1.0, ge=0)
    min_p: float = Field(0.0, ge=0, le=1)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, lt=2**31)
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: Bias = Field({})
    allowed_token_ids: list[TokenId] | None = Field(None, min_length=1)
    banned_token_ids: list[TokenId] = Field([])
    seed: int | None = None
    n: int = Field(1, ge=1, le=128)
    stop: Stops = Field([])
    stop_token_ids: list[TokenId] = Field([])
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    prompt_logprobs: int | None = Field(None, ge=0, le=20)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    user: str = Field("default", max_length=512)
    specd: SpecdExtension = SpecdExtension()

    @property
    def token_limit(self) -> int | None:
        """Tokens asked for, if any number was."""
        return self.max_tokens

    @property
    def likeliest(self) -> int | None:
        """So many of the likeliest tokens with the logprob of each token; None for no logprobs."""
        raise NotImplementedError

    @property
    def echoed(self) -> bool:
        """Whether the text begins with the prompt."""
        return False

    @property
    def prompt_scores(self) -> int | None:
        """The same as `likeliest`, for the prompt's tokens."""
        counts = [self.prompt_logprobs, self.likeliest if self.echoed else None]
        return max((count for count in counts if count is not None), default=None)

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if "stream_options" in self.model_fields_set and not self.stream:
            raise PydanticCustomError(
                "no_stream", "stream_options goes with stream = true: add it or drop them"
            )
        if self.stream and self.prompt_logprobs is not None:
            raise fault("prompt_logprobs", "cannot be streamed: drop it or stream")
        return self

    @model_validator(mode="after")
    def _minimum_fits(self) -> Self:
        if self.token_limit is not None and self.min_tokens > self.token_limit:
            raise fault(
                "min_tokens", f"is {self.min_tokens}, more than max_tokens, which is {self.token_limit}"
            )
        return self


class CompletionBody(Generation):
    """`POST /v1/completions`."""

    prompt: Prompt
    max_tokens: int | None = Field(None, ge=0)
    best_of: int | None = Field(None, ge=1, le=128)
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False

    @property
    def likeliest(self) -> int | None:
        """As it stands there."""
        return self.logprobs

    @property
    def echoed(self) -> bool:
        """As asked for."""
        return self.echo

    @model_validator(mode="after")
    def _something_is_asked_for(self) -> Self:
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise fault("max_tokens", "must be at least 1, not 0: 0 goes with echo or prompt_logprobs only")
        return self

    @model_validator(mode="after")
    def _all_are_returned(self) -> Self:
        if self.best_of not in {None, self.n}:
            raise fault("best_of", f"must be n, which is {self.n}: choosing among more is not built")
        return self


class ChatBody(Generation):
    """`POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    tools: list[Tool] = Field([])
    tool_choice: AnyToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    continue_final_message: bool = False
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] = Field({})

    @property
    def token_limit(self) -> int | None:
        """The newer name wins."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def likeliest(self) -> int | None:
        """OpenAI says it in two parameters here."""
        return self.top_logprobs if self.logprobs else None

    @property
    def callable_tools(self) -> list[Tool]:
        """What the model is told of."""
        return [] if self.tool_choice.mode == "none" else self.tools

    @model_validator(mode="after")
    def _top_of_something(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise fault("top_logprobs", "goes with logprobs = true: add it or drop this")
        return self

    @model_validator(mode="after")
    def _one_way_to_go_on(self) -> Self:
        if not self.continue_final_message:
            return self
        if self.add_generation_prompt:
            raise fault(
                "add_generation_prompt",
                "and continue_final_message contradict each other: either a new message begins or the last goes on",
            )
        if self.messages[-1].role != "assistant" or not self.messages[-1].content:
            raise fault(
                "continue_final_message", "needs a last message of the assistant's with text to continue"
            )
        return self

    @model_validator(mode="after")
    def _known_tools(self) -> Self:
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise fault("tools", "have two functions of the same name: rename one")
        if self.tool_choice.mode == "required" and not names:
            raise fault("tool_choice", "asks for a call, and there are no tools: add them or drop it")
        if self.tool_choice.name not in {None, *names}:
            raise fault(
                "tool_choice", f"names the function {self.tool_choice.name!r}, which tools do not have"
            )
        return self

    @model_validator(mode="after")
    def _calls_are_free_text(self) -> Self:
        if self.callable_tools and self.grammar is not None:
            raise fault(
                "tools",
                "and a structure for the text are not built in one request: drop one, or set tool_choice to none",
            )
        return self

    @model_validator(mode="after")
    def _template_variables(self) -> Self:
        taken = sorted(_OURS & self.chat_template_kwargs.keys())
        if taken:
            raise fault("chat_template_kwargs", f"cannot set {taken[0]}: specd does that itself")
        return self
