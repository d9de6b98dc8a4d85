"""The life of a request: parse, take a place, encode, submit, and answer in one piece or as a stream."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic

from starlette.types import Send
from tokenizers import Tokenizer

from engine.api import Output, Request, RequestReport, SamplingParams
from engine.text import TextStream
from specd.config.schema import Config
from specd.flights import Flight, Refusal, UnservedError
from specd.http import shapes
from specd.http.asgi import fault, json_response
from specd.http.bodies import Generation
from specd.http.classes import ClassNames
from specd.http.errors import ApiError, from_refusal
from specd.http.parse import AnyBody, parse
from specd.http.prompt import PromptEncoder
from specd.http.sse import PING_SECONDS, EventStream
from specd.serving import ServedModel, draft_revision
from specd.supervisor import Supervisor

log = logging.getLogger(__name__)

_SEEDS: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Service:
    """What the endpoints work with."""

    name: str
    """Of the model, as clients know it."""
    supervisor: Supervisor
    model: Callable[[], Awaitable[ServedModel]]
    config: Callable[[], Config]
    classes: ClassNames
    ping_seconds: float = PING_SECONDS


class Transcript:
    """What has come of one request so far."""

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        self._stream = TextStream.of(tokenizer, request)
        self.tokens = 0
        self.finish: str | None = None
        """OpenAI's word for why it ended, once it has."""
        self.report: RequestReport | None = None

    def take(self, output: Output) -> str:
        """The text that an output adds. Raises `UnservedError` if the engine gave the request up."""
        self.tokens += len(output.tokens)
        self.report = output.report
        text = self._stream.push(output.tokens)
        if output.finish is not None:
            text += self._stream.flush()
        if output.finish == "cancelled":
            raise UnservedError(Refusal("the engine cancelled this request; send it again", "engine_error"))
        self.finish = "stop" if self._stream.stopped else output.finish
        return text


class GenerateEndpoint(Generic[AnyBody]):
    """One of the two endpoints; `encode` is what tells them apart, besides the shape of the answer."""

    def __init__(
        self,
        service: Service,
        kind: type[AnyBody],
        encode: Callable[[PromptEncoder, AnyBody], Awaitable[list[int]]],
        shape: shapes.Shape,
    ) -> None:
        self._service = service
        self._kind = kind
        self._encode = encode
        self._shape = shape

    async def handle(self, raw: bytes, send: Send) -> None:
        """Answer one request. Raises `ApiError` or `UnservedError` as long as nothing was sent."""
        body = parse(self._kind, raw)
        self._check_model(body)
        with self._service.supervisor.flights.admit() as flight:
            model = await self._service.model()
            request = await self._request(body, model)
            self._service.supervisor.submit(flight, request)
            answer = _Answer(self._service, self._shape, body, model, request=request, flight=flight)
            await (answer.stream(send) if body.stream else answer.whole(send))

    def _check_model(self, body: Generation) -> None:
        name = self._service.name
        if body.model not in {None, name}:
            message = f"the model {body.model!r} is not served here, {name!r} is"
            raise ApiError(404, message, param="model", code="model_not_found")

    async def _request(self, body: AnyBody, model: ServedModel) -> Request:
        prompt = await self._encode(model.encoder, body)
        context = (await self._service.supervisor.engine_info()).max_context
        default = self._service.config().server.default_max_tokens
        max_tokens = token_limit(len(prompt), body.token_limit, context=context, default=default)
        return Request(
            id=f"{self._shape.prefix}-{secrets.token_hex(12)}",
            prompt=prompt,
            sampling=_sampling(body, max_tokens),
            speculate=body.specd.speculate == "auto",
            k=body.specd.k,
            traffic_class=self._service.classes.known(body.specd.traffic_class),
            tenant=body.user,
        )


def _sampling(body: Generation, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=body.temperature,
        top_k=max(body.top_k, 0),
        top_p=body.top_p,
        seed=secrets.randbelow(_SEEDS) if body.seed is None else body.seed % _SEEDS,
        stop=tuple(body.stop),
        ignore_eos=body.ignore_eos,
    )


def token_limit(prompt: int, asked: int | None, *, context: int, default: int) -> int:
    """How many tokens may be generated. Raises `ApiError` when they do not fit the context."""
    left = context - prompt
    if prompt == 0:
        raise ApiError(400, "the prompt has no tokens: write something", param="prompt", code="invalid_value")
    if left < 1:
        message = (
            f"the prompt has {prompt} tokens and the context holds {context}, the answer included:"
            " shorten the prompt"
        )
        raise ApiError(400, message, param="prompt", code="context_length_exceeded")
    if asked is not None and asked > left:
        message = (
            f"max_tokens is {asked}, but after a prompt of {prompt} tokens"
            f" a context of {context} has room for {left}: lower it or shorten the prompt"
        )
        raise ApiError(400, message, param="max_tokens", code="context_length_exceeded")
    return min(default, left) if asked is None else asked


class _Answer:
    """Sends what the engine makes of one request."""

    def __init__(
        self,
        service: Service,
        shape: shapes.Shape,
        body: Generation,
        model: ServedModel,
        *,
        request: Request,
        flight: Flight,
    ) -> None:
        self._service = service
        self._shape = shape
        self._body = body
        self._model = model
        self._request = request
        self._flight = flight
        self._transcript = Transcript(model.encoder.tokenizer, request)
        self._head = shapes.Head(request.id, int(time.time()), service.name)

    async def whole(self, send: Send) -> None:
        """One JSON body."""
        text = ""
        while self._transcript.finish is None:
            text += self._transcript.take(await self._flight.next())
        body = self._shape.whole(self._head, text, self._transcript.finish)
        body |= {"usage": self._usage(), **self._report()}
        await json_response(body)({"type": "http"}, _no_receive, send)

    async def stream(self, send: Send) -> None:
        """Server-sent events; from the first on, an error is an event too."""
        events = EventStream(send)
        await events.open()
        try:
            await self._send_all(events)
            await events.done()
        except UnservedError as unserved:
            await events.event(from_refusal(unserved.refusal).body())
        except Exception as error:  # the status is sent: an event is all that is left to tell
            log.exception("request %s failed", self._request.id)
            await events.event(fault(error).body())
        await events.close()

    async def _send_all(self, events: EventStream) -> None:
        opening = self._shape.opening(self._head)
        if opening is not None:
            await events.event(self._chunk(opening))
        while self._transcript.finish is None:
            text = self._transcript.take(await self._next(events))
            if text or self._transcript.finish:
                await self._send_piece(events, text)
        if self._body.stream_options.include_usage:
            tail = self._shape.tail(self._head)
            await events.event(tail | {"usage": self._usage(), **self._report()})

    async def _send_piece(self, events: EventStream, text: str) -> None:
        finish = self._transcript.finish
        chunk = self._chunk(self._shape.chunk(self._head, text, finish))
        if finish is not None and not self._body.stream_options.include_usage:
            chunk |= self._report()
        await events.event(chunk)

    def _chunk(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """With usage asked for, every chunk has the key."""
        return chunk | {"usage": None} if self._body.stream_options.include_usage else chunk

    async def _next(self, events: EventStream) -> Output:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._service.ping_seconds):
                    return await self._flight.next()
            await events.ping()

    def _usage(self) -> dict[str, int]:
        return shapes.usage(len(self._request.prompt), self._transcript.tokens)

    def _report(self) -> dict[str, Any]:
        found = self._transcript.report
        if not self._body.specd.report or found is None:
            return {}
        draft = draft_revision(self._service.config().model.draft)
        return {"specd": shapes.report(found, self._model.info.revision, draft)}


async def _no_receive() -> Any:
    raise AssertionError("a response does not read")
