"""Sends what the engine makes of one request, in one piece or as a stream."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import Send

from engine.api import Output, Request, RequestReport
from specd.flights import Flight, UnservedError
from specd.http import shapes
from specd.http.asgi import fault, json_response
from specd.http.bodies import Generation
from specd.http.choice import Choice, Said
from specd.http.encode import Prompt
from specd.http.errors import from_refusal
from specd.http.logprobs import Logprobs, Scored, prompt_logprobs
from specd.http.sse import EventStream, Mould
from specd.serving import ServedModel

log = logging.getLogger(__name__)

_STATUS_SECONDS: Final = 1.0
"""So long the status of a stream waits for the engine, whose refusals come with its next step. A request that waits for
its turn gets its headers then, for clients and proxies count the seconds to them."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, from every side."""

    body: Generation
    prompt: Prompt
    request: Request
    model: ServedModel
    draft_revision: str
    name: str
    """Of the model, as clients know it."""


class Answer:
    """To one request that was submitted."""

    def __init__(self, asked: Asked, shape: shapes.Shape, flight: Flight, ping_seconds: float) -> None:
        self._asked = asked
        self._body = asked.body
        self._shape = shape
        self._flight = flight
        self._ping_seconds = ping_seconds
        self._head = shapes.Head(asked.request.id, int(time.time()), asked.name)
        self._choices = [self._choice(index) for index in range(asked.request.n)]
        self._logprobs = [self._formatter() for _ in self._choices]
        self._moulds: dict[int, Mould] = {}
        self._early: list[Output] = []
        self._prompt_scored: list[Scored] = []
        self.failure = ""
        """The code of the error that a stream ended with."""

    @property
    def reports(self) -> list[RequestReport]:
        """Of the texts that have ended."""
        return [choice.report for choice in self._choices if choice.report is not None]

    @property
    def finishes(self) -> list[str]:
        """Why they ended."""
        return [choice.finish for choice in self._choices if choice.finish is not None]

    def _choice(self, index: int) -> Choice:
        asked = self._asked
        tokenizer = asked.model.encoder.tokenizer
        counts = asked.body.token_limit != 0
        return Choice(index, tokenizer, asked.request, asked.prompt.reader(), counts=counts)

    def _formatter(self) -> Logprobs | None:
        count = self._body.likeliest
        return None if count is None else self._shape.logprobs(self._asked.model.encoder.token_bytes, count)

    async def whole(self, send: Send) -> None:
        """One JSON body."""
        await self._await_prompt()
        said = [list(self._echo()) for _ in self._choices]
        async for output in self._outputs():
            said[output.index].append(self._choices[output.index].take(output))
        joined = [Said.joined(parts) for parts in said]
        choices = [
            self._finished(choice, self._shape.whole(one), one)
            for choice, one in zip(self._choices, joined, strict=True)
        ]
        answer = self._head.wrap(self._shape.whole_kind, choices) | {"usage": self._usage(), **self._report()}
        await json_response(self._with_prompt_logprobs(answer))({"type": "http"}, _no_receive, send)

    async def stream(self, send: Send) -> None:
        """Server-sent events. A refusal that comes at once has its status, a later one is an event."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(self._ping_seconds, _STATUS_SECONDS)):
                self._early.append(await self._flight.next())
        events = EventStream(send)
        await events.open()
        self._flight.begun = True
        try:
            async with events.kept_open(self._ping_seconds):
                await self._send_all(events)
            await events.done()
        except UnservedError as unserved:
            self.failure = unserved.refusal.code
            await events.event(from_refusal(unserved.refusal).body())
        except Exception as error:  # the status is sent: an event is all that is left to tell
            self.failure = "internal_error"
            log.exception("request %s failed", self._asked.request.id)
            await events.event(fault(error).body())
        await events.close()

    async def _send_all(self, events: EventStream) -> None:
        for choice in self._choices:
            if (opening := self._shape.opening()) is not None:
                await events.event(self._chunk([self._placed(choice, opening, None)]))
        await self._await_prompt()
        for choice in self._choices:
            for said in self._echo():
                await self._send_piece(events, choice, said, calls_before=0)
        async for output in self._outputs():
            choice = self._choices[output.index]
            before = choice.calls
            said = choice.take(output)
            if said or choice.finish:
                await self._send_piece(events, choice, said, calls_before=before)
        if self._body.stream_options.include_usage:
            tail = self._head.wrap(self._shape.chunk_kind, [])
            await events.event(tail | {"usage": self._usage(), **self._report()})

    async def _send_piece(
        self, events: EventStream, choice: Choice, said: Said, *, calls_before: int
    ) -> None:
        if said.is_plain and choice.finish is None and self._logprobs[choice.index] is None:
            await events.moulded(self._mould(choice), said.text)
            return
        chunk = self._piece(choice, said, calls_before)
        if choice.finish is not None and not self._body.stream_options.include_usage:
            chunk |= self._report()
        await events.event(chunk)

    def _mould(self, choice: Choice) -> Mould:
        """Of its pieces that are text and nothing else."""
        if choice.index not in self._moulds:
            self._moulds[choice.index] = Mould(lambda text: self._piece(choice, Said(text)))
        return self._moulds[choice.index]

    def _piece(self, choice: Choice, said: Said, calls_before: int = 0) -> dict[str, Any]:
        return self._chunk([self._finished(choice, self._shape.chunk(said, calls_before), said)])

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """With usage asked for, every chunk has the key."""
        chunk = self._head.wrap(self._shape.chunk_kind, choices)
        return chunk | {"usage": None} if self._body.stream_options.include_usage else chunk

    async def _await_prompt(self) -> None:
        """Where the prompt's logprobs are asked for: they come with the first output of text 0."""
        if self._body.prompt_scores is None:
            return
        while not self._early or self._early[-1].index:
            self._early.append(await self._flight.next())
        found = self._early[-1].prompt_logprobs or []
        self._prompt_scored = list(zip(self._asked.request.prompt, found, strict=False))

    async def _outputs(self) -> AsyncIterator[Output]:
        for output in self._early:
            yield output
        while any(choice.finish is None for choice in self._choices):
            yield await self._flight.next()

    def _echo(self) -> Iterator[Said]:
        """What each choice begins with."""
        if self._body.echoed:
            yield Said(self._asked.prompt.echo, scored=self._prompt_scored)

    def _finished(self, choice: Choice, content: dict[str, Any], said: Said) -> dict[str, Any]:
        """With logprobs, and with the report where there is one for each choice."""
        formatter = self._logprobs[choice.index]
        logprobs = None if formatter is None else formatter.of(said.scored)
        placed = self._placed(choice, content, logprobs)
        return placed | self._report_of(choice) if len(self._choices) > 1 else placed

    def _placed(self, choice: Choice, content: dict[str, Any], logprobs: Any) -> dict[str, Any]:
        return {"index": choice.index, **content, "logprobs": logprobs, "finish_reason": choice.finish}

    def _usage(self) -> dict[str, Any]:
        first = self._choices[0].report
        return shapes.usage(
            len(self._asked.request.prompt),
            sum(choice.tokens for choice in self._choices),
            0 if first is None else first.cached_tokens,
        )

    def _report(self) -> dict[str, Any]:
        """Of a request for one text; of several, each has its own."""
        return self._report_of(self._choices[0]) if len(self._choices) == 1 else {}

    def _report_of(self, choice: Choice) -> dict[str, Any]:
        if not self._body.specd.report or choice.report is None:
            return {}
        revision = self._asked.model.info.revision
        return {"specd": shapes.report(choice.report, revision, self._asked.draft_revision)}

    def _with_prompt_logprobs(self, answer: dict[str, Any]) -> dict[str, Any]:
        count = self._body.prompt_logprobs
        if count is None:
            return answer
        tokens = self._asked.model.encoder.token_bytes
        return self._shape.with_prompt_logprobs(answer, prompt_logprobs(tokens, self._prompt_scored, count))


async def _no_receive() -> Any:
    raise AssertionError("a response does not read")
