"""What a streamed chat completion looks like on the wire, as far as the load generator reads it."""

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from specd.bench.sample import Speculation


class Report(msgspec.Struct):
    """specd's own extension: what speculation did for this request, by draft position."""

    rounds: int = 0
    examined: list[int] = []
    accepted: list[int] = []

    def speculation(self) -> Speculation:
        """The same, summed over positions."""
        return Speculation(self.rounds, sum(self.examined), sum(self.accepted))


class Delta(msgspec.Struct):
    """New text; servers of reasoning models send some of it under a name of their own."""

    content: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct):
    """The only choice, since one is asked for."""

    delta: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    """The server's count, in the last chunk where it was asked for."""

    completion_tokens: int = 0


class Chunk(msgspec.Struct):
    """One event of the stream."""

    choices: list[Choice] = []
    usage: Usage | None = None
    specd: Report | None = None
    error: Any = None

    @property
    def has_text(self) -> bool:
        """Some servers open with a chunk that only names the role."""
        return any(choice.delta.content or choice.delta.reasoning_content for choice in self.choices)

    @property
    def is_last(self) -> bool:
        """Usage may still follow."""
        return any(choice.finish_reason for choice in self.choices)


@dataclass(slots=True)
class Received:
    """What has been seen of one response so far."""

    arrivals: list[float] = field(default_factory=list)
    tokens: int | None = None
    report: Report | None = None
    finished: bool = False

    def take(self, chunk: Chunk) -> None:
        """Note one chunk, and the time if it brought text."""
        if chunk.has_text:
            self.arrivals.append(time.perf_counter())
        if chunk.usage is not None:
            self.tokens = chunk.usage.completion_tokens
        self.report = chunk.specd or self.report
        self.finished = self.finished or chunk.is_last


def error_message(error: Any) -> str:
    """The message of OpenAI's error envelope, or whatever stands in its place."""
    message = error.get("message") if isinstance(error, dict) else error
    return str(message).rstrip(". ")
