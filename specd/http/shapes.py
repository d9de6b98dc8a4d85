"""What answers look like: OpenAI's two formats, whole and in chunks, and specd's own report."""

from dataclasses import dataclass
from typing import Any, Protocol

from engine.api import RequestReport


@dataclass(frozen=True, slots=True)
class Head:
    """What every chunk of an answer repeats."""

    id: str
    created: int
    model: str

    def wrap(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """An answer or a chunk of it."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


class Shape(Protocol):
    """One of the two formats."""

    @property
    def prefix(self) -> str:
        """Begins the ids of answers."""

    def whole(self, head: Head, text: str, finish: str) -> dict[str, Any]:
        """The answer in one piece."""

    def opening(self, head: Head) -> dict[str, Any] | None:
        """The chunk before any text, if the format has one."""

    def chunk(self, head: Head, text: str, finish: str | None) -> dict[str, Any]:
        """A piece of the answer."""

    def tail(self, head: Head) -> dict[str, Any]:
        """A chunk without a choice, for usage."""


class CompletionShape:
    """`/v1/completions`."""

    prefix = "cmpl"

    def whole(self, head: Head, text: str, finish: str) -> dict[str, Any]:
        """The answer in one piece."""
        return self.chunk(head, text, finish)

    def opening(self, _: Head) -> None:
        """There is none."""

    def chunk(self, head: Head, text: str, finish: str | None) -> dict[str, Any]:
        """Pieces look like the whole."""
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
        return head.wrap("text_completion", [choice])

    def tail(self, head: Head) -> dict[str, Any]:
        """Without a choice."""
        return head.wrap("text_completion", [])


class ChatShape:
    """`/v1/chat/completions`."""

    prefix = "chatcmpl"

    def whole(self, head: Head, text: str, finish: str) -> dict[str, Any]:
        """The answer as a message."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        return head.wrap("chat.completion", [choice])

    def opening(self, head: Head) -> dict[str, Any]:
        """Says who speaks."""
        return self._chunk(head, {"role": "assistant", "content": ""}, None)

    def chunk(self, head: Head, text: str, finish: str | None) -> dict[str, Any]:
        """A delta of the message."""
        return self._chunk(head, {"content": text} if text else {}, finish)

    def tail(self, head: Head) -> dict[str, Any]:
        """Without a choice."""
        return head.wrap("chat.completion.chunk", [])

    def _chunk(self, head: Head, delta: dict[str, str], finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return head.wrap("chat.completion.chunk", [choice])


def usage(prompt: int, completion: int) -> dict[str, int]:
    """Tokens, as they are paid for."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def report(found: RequestReport, target_revision: str, draft_revision: str) -> dict[str, Any]:
    """The response extension."""
    return {
        "rounds": found.rounds,
        "drafted": found.drafted,
        "examined": found.examined,
        "accepted": found.accepted,
        "k_histogram": {str(k): rounds for k, rounds in sorted(found.k_histogram.items())},
        "proposers": found.proposers,
        "target_revision": target_revision,
        "draft_revision": draft_revision,
    }
