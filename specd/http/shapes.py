"""What answers look like: OpenAI's two formats, whole and in chunks, and specd's own report."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.api import RequestReport
from engine.token_bytes import TokenBytes
from specd.http.choice import Said
from specd.http.logprobs import ChatLogprobs, CompletionLogprobs, Logprobs
from specd.http.tools import Call


@dataclass(frozen=True, slots=True)
class Head:
    """What every chunk of an answer repeats."""

    id: str
    created: int
    model: str

    def wrap(self, kind: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """An answer or a chunk of it."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


class Shape(Protocol):
    """One of the two formats. Choices come without their index, logprobs and finish, which look alike in both."""

    @property
    def prefix(self) -> str:
        """Begins the ids of answers."""

    @property
    def whole_kind(self) -> str:
        """`object` of an answer."""

    @property
    def chunk_kind(self) -> str:
        """`object` of a piece of it."""

    def logprobs(self, tokens: TokenBytes, likeliest: int) -> Logprobs:
        """For one choice."""

    def whole(self, said: Said) -> dict[str, Any]:
        """A choice in one piece."""

    def opening(self) -> dict[str, Any] | None:
        """A choice's chunk before any text, if the format has one."""

    def chunk(self, said: Said, calls_before: int) -> dict[str, Any]:
        """A piece of a choice that has made so many calls already."""

    def with_prompt_logprobs(self, answer: dict[str, Any], found: list[Any]) -> dict[str, Any]:
        """vLLM has them in different places."""


class CompletionShape:
    """`/v1/completions`."""

    prefix = "cmpl"
    whole_kind = chunk_kind = "text_completion"

    def logprobs(self, tokens: TokenBytes, likeliest: int) -> Logprobs:
        """Parallel lists."""
        return CompletionLogprobs(tokens, likeliest)

    def whole(self, said: Said) -> dict[str, Any]:
        """Text."""
        return {"text": said.text}

    def opening(self) -> None:
        """There is none."""

    def chunk(self, said: Said, _: int) -> dict[str, Any]:
        """Pieces look like the whole."""
        return self.whole(said)

    def with_prompt_logprobs(self, answer: dict[str, Any], found: list[Any]) -> dict[str, Any]:
        """In every choice."""
        choices = [choice | {"prompt_logprobs": found} for choice in answer["choices"]]
        return answer | {"choices": choices}


class ChatShape:
    """`/v1/chat/completions`."""

    prefix = "chatcmpl"
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def logprobs(self, tokens: TokenBytes, likeliest: int) -> Logprobs:
        """An object for each token."""
        return ChatLogprobs(tokens, likeliest)

    def whole(self, said: Said) -> dict[str, Any]:
        """A message; without text where there are only calls."""
        content = None if said.calls and not said.text else said.text
        message = {"role": "assistant", "content": content, "refusal": None}
        return {"message": message | _calls([_call(call) for call in said.calls])}

    def opening(self) -> dict[str, Any]:
        """Says who speaks."""
        return {"delta": {"role": "assistant", "content": ""}}

    def chunk(self, said: Said, calls_before: int) -> dict[str, Any]:
        """A delta of the message."""
        text = {"content": said.text} if said.text else {}
        calls = [{"index": at, **_call(call)} for at, call in enumerate(said.calls, start=calls_before)]
        return {"delta": text | _calls(calls)}

    def with_prompt_logprobs(self, answer: dict[str, Any], found: list[Any]) -> dict[str, Any]:
        """Once."""
        return answer | {"prompt_logprobs": found}


def _calls(calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"tool_calls": calls} if calls else {}


def _call(call: Call) -> dict[str, Any]:
    return {
        "id": f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    """Tokens, as they are paid for: the prompt once, and all of its texts."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def report(found: RequestReport, target_revision: str, draft_revision: str) -> dict[str, Any]:
    """The response extension."""
    why_not = {} if found.not_speculated is None else {"not_speculated": found.not_speculated}
    return {
        "rounds": found.rounds,
        "drafted": found.drafted,
        "examined": found.examined,
        "accepted": found.accepted,
        "k_histogram": {str(k): rounds for k, rounds in sorted(found.k_histogram.items())},
        "proposers": found.proposers,
        "target_revision": target_revision,
        "draft_revision": draft_revision,
        **why_not,
    }
