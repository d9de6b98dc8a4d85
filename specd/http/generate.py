"""The life of a request: parse, take a place, encode, submit, answer."""

import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol

from starlette.types import Scope, Send

from engine.api import Request
from engine.classes import ClassNames
from specd.admission.turnstile import Ticket, Turnstile
from specd.config.schema import Config
from specd.flights import RECALLED, Flight, UnservedError
from specd.http import shapes
from specd.http.answer import Answer, Asked
from specd.http.bodies import Generation
from specd.http.deadline import Deadline
from specd.http.encode import Prompt
from specd.http.errors import ApiError
from specd.http.guard import caller_of
from specd.http.params import check_tokens, sampling, token_limit
from specd.http.parse import AnyBody, parse
from specd.http.prompt import PromptEncoder
from specd.http.room import Room
from specd.http.sse import PING_SECONDS
from specd.http.traced import span_of
from specd.serving import ServedModel
from specd.supervisor import Supervisor
from specd.telemetry import tracing
from specd.telemetry.tracing import Span


class Line(Protocol):
    """A target with its engine, as far as a request needs to know it."""

    supervisor: Supervisor

    async def model(self) -> ServedModel:
        """Waits for it. Raises `UnservedError` if it never comes."""


@dataclass(frozen=True, slots=True)
class Service:
    """What the endpoints work with."""

    name: str
    """Of the model, as clients know it."""
    enter: Callable[[], Awaitable[Line]]
    """Where a new request goes."""
    config: Callable[[], Config]
    classes: ClassNames
    turnstile: Turnstile
    unserved: Callable[[str], None]
    """Told the code of each request that got no answer, or half of one."""
    record: Callable[[Generation, int], None] = lambda _body, _tokens: None
    """Told of each request that is understood, and of how many tokens its prompt is."""
    ping_seconds: float = PING_SECONDS


@dataclass(frozen=True, slots=True)
class Visit:
    """Whose request it is, and what that allows it."""

    tenant: str
    deadline: Deadline
    ticket: Ticket

    @contextmanager
    def counting(self, flight: Flight) -> Iterator[None]:
        """It has a place: what comes of it counts."""
        self.ticket.admitted()
        try:
            yield
        finally:
            if flight.request is not None:
                self.ticket.tokens += len(flight.request.prompt) + flight.tokens


class GenerateEndpoint(Generic[AnyBody]):
    """One of the two endpoints; `encode` is what tells them apart, besides the shape of the answer."""

    def __init__(
        self,
        service: Service,
        kind: type[AnyBody],
        encode: Callable[[PromptEncoder, AnyBody, Room], Awaitable[Prompt]],
        shape: shapes.Shape,
    ) -> None:
        self._service = service
        self._kind = kind
        self._encode = encode
        self._shape = shape

    async def handle(self, raw: bytes, send: Send, scope: Scope) -> None:
        """Answer one request. Raises `ApiError` or `UnservedError` as long as nothing was sent."""
        body = parse(self._kind, raw)
        self._check_model(body)
        span = span_of(scope)
        caller = caller_of(scope)
        tenant = body.user if caller.tenant is None else caller.tenant
        deadline = Deadline.after(body.specd.timeout, self._service.config().server.request_seconds)
        try:
            with self._service.turnstile.enter(tenant, caller.key) as ticket:
                visit = Visit(tenant, deadline, ticket)
                while not await self._answered(body, visit, send, span):
                    """It was recalled before anything was sent: anew, where requests go now."""
        except UnservedError as unserved:
            self._service.unserved(unserved.refusal.code)
            raise

    async def _answered(self, body: AnyBody, visit: Visit, send: Send, span: Span) -> bool:
        """False where nothing was sent and the request is to begin anew."""
        async with visit.deadline.before_it():
            line = await self._service.enter()
        flights = line.supervisor.flights
        with (
            flights.admit(visit.tenant) as flight,
            visit.deadline.ending(flight, flights),
            visit.counting(flight),
        ):
            async with visit.deadline.before_it():
                asked = await self._asked(body, line, visit.tenant)
            line.supervisor.submit(flight, asked.request)
            span.set(
                tracing.asked(asked.request, asked.name, asked.model.info.revision, asked.draft_revision)
            )
            answer = Answer(asked, self._shape, flight, self._service.ping_seconds)
            try:
                await (answer.stream(send) if body.stream else answer.whole(send))
            except UnservedError as unserved:
                if unserved.refusal is not RECALLED:
                    raise
                return False
            finally:
                _tell(span, answer)
        if answer.failure:
            self._service.unserved(answer.failure)
        return True

    def _check_model(self, body: Generation) -> None:
        name = self._service.name
        if body.model not in {None, name}:
            message = f"the model {body.model!r} is not served here, {name!r} is"
            raise ApiError(404, message, param="model", code="model_not_found")

    async def _asked(self, body: AnyBody, line: Line, tenant: str) -> Asked:
        model = await line.model()
        check_tokens(body, model.encoder)
        engine = await line.supervisor.engine_info()
        config = self._service.config()
        room = Room(engine.max_context, config.server.max_prompt_tokens)
        prompt = await self._encode(model.encoder, body, room)
        room.check(len(prompt.tokens))
        default = config.server.default_max_tokens
        max_tokens = token_limit(
            len(prompt.tokens), body.token_limit, context=engine.max_context, default=default
        )
        self._service.record(body, len(prompt.tokens))
        return Asked(
            body=body,
            prompt=prompt,
            request=self._request(body, prompt, max_tokens, tenant, continues=not engine.encodes),
            model=model,
            draft_revision=model.drafts.revision(config.model.draft),
            name=self._service.name,
        )

    def _request(
        self, body: Generation, prompt: Prompt, max_tokens: int, tenant: str, *, continues: bool
    ) -> Request:
        return Request(
            id=f"{self._shape.prefix}-{secrets.token_hex(12)}",
            prompt=prompt.tokens,
            sampling=sampling(body, prompt, max_tokens),
            n=body.n,
            continues=continues,
            speculate=body.specd.speculate == "auto",
            k=body.specd.k,
            k_max=body.specd.k_max,
            traffic_class=self._service.classes.known(body.specd.traffic_class),
            tenant=tenant,
        )


def _tell(span: Span, answer: Answer) -> None:
    span.set(tracing.speculation(answer.reports))
    if answer.finishes:
        span.set({"gen_ai.response.finish_reasons": answer.finishes})
    if answer.failure:
        span.failed(answer.failure)
