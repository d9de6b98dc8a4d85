"""One of a request's texts, as far as it has come."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from tokenizers import Tokenizer

from engine.api import Output, Request, RequestReport
from engine.text import TextStream
from specd.flights import Refusal, UnservedError
from specd.http.logprobs import Scored
from specd.http.tools import Call, Reader


class Said(NamedTuple):
    """What a choice's outputs add to it."""

    text: str = ""
    calls: Sequence[Call] = ()
    scored: Sequence[Scored] = ()
    """Tokens with their logprobs, if asked for."""

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """All of them, in order."""
        parts = list(parts)
        return cls(
            text="".join(part.text for part in parts),
            calls=[call for part in parts for call in part.calls],
            scored=[one for part in parts for one in part.scored],
        )

    @property
    def is_plain(self) -> bool:
        """Whether it is text, and nothing else."""
        return bool(self.text) and not self.calls and not self.scored

    def __bool__(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.text or self.calls or self.scored)


class Choice:
    """From outputs to text, calls and logprobs."""

    def __init__(
        self, index: int, tokenizer: Tokenizer, request: Request, reader: Reader, *, counts: bool
    ) -> None:
        """Without `counts` its token was not asked for: the engine makes one at least."""
        self._stream = TextStream.of(tokenizer, request)
        self._reader = reader
        self._counts = counts
        self.index = index
        self.tokens = 0
        self.calls = 0
        """How many were made."""
        self.finish: str | None = None
        """OpenAI's word for why it ended, once it has."""
        self.report: RequestReport | None = None

    def take(self, output: Output) -> Said:
        """What an output adds. Raises `UnservedError` if the engine gave the request up."""
        if output.finish == "cancelled":
            raise UnservedError(Refusal("the engine cancelled this request; send it again", "engine_error"))
        said = self._read(output) if self._counts else Said()
        self.tokens += len(output.tokens) if self._counts else 0
        self.calls += len(said.calls)
        self.report = output.report
        if output.finish is not None:
            self.finish = self._reason(output.finish)
        return said

    def _read(self, output: Output) -> Said:
        text = self._stream.push(output.tokens)
        if output.finish is not None:
            text += self._stream.flush()
        scored = [(found.token, found) for found in output.logprobs or ()]
        piece = self._reader.push(text)
        if output.finish is None:
            return Said(piece.text, piece.calls, scored)
        last = self._reader.flush()
        return Said(piece.text + last.text, (*piece.calls, *last.calls), scored)

    def _reason(self, finish: str) -> str:
        if not self._counts:
            return "length"
        ended = "stop" if self._stream.stopped else finish
        return "tool_calls" if self.calls and ended == "stop" else ended
