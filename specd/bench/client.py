"""One streaming request to an OpenAI-compatible server, timed where the text arrives."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import msgspec

from specd.bench.chunks import Chunk, Received, error_message
from specd.bench.prompts import Prompt
from specd.bench.sample import Sample
from specd.errors import UserError, clause

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 300.0  # a long queue before the first token is a result, not a fault
WARM_UP = Prompt("default", "Warm-up. Count from one to two hundred in words.")


class ServerRefusedError(UserError):
    """The server cannot be measured."""


class RequestFailedError(Exception):
    """One request brought no complete text."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    @property
    def body_was_refused(self) -> bool:
        """Another body might do."""
        return self.status in (400, 422)


@dataclass(frozen=True, slots=True)
class Dialect:
    """Which keys beyond the common ones a server takes in a request's body."""

    extension: bool
    """`specd`: ask for the report of speculation, name the traffic class."""
    ignore_eos: bool
    """Without it a text may end before `max_tokens`."""
    usage: bool
    """`stream_options.include_usage`; without it arrivals of text are counted as tokens."""

    def keys(self, traffic_class: str) -> dict[str, Any]:
        """What to add to the body."""
        keys: dict[str, Any] = {}
        if self.extension:
            keys["specd"] = {"class": traffic_class, "report": True}
        if self.ignore_eos:
            keys["ignore_eos"] = True
        if self.usage:
            keys["stream_options"] = {"include_usage": True}
        return keys


# From the richest to the poorest: the first that a server does not refuse is spoken with it.
DIALECTS = (
    Dialect(extension=True, ignore_eos=True, usage=True),
    Dialect(extension=False, ignore_eos=True, usage=True),
    Dialect(extension=False, ignore_eos=False, usage=True),
    Dialect(extension=False, ignore_eos=False, usage=False),
)


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answered the warm-up request, and how to talk to it."""

    http: httpx2.AsyncClient
    model: str
    dialect: Dialect

    async def ask(self, prompt: Prompt, max_tokens: int) -> Sample:
        """Send one request and read its stream to the end. A failure is in the sample, never raised."""
        received, error = Received(), None
        started = time.perf_counter()
        try:
            await self.read(prompt, max_tokens, received)
        except RequestFailedError as failure:
            error = str(failure)
        tokens = received.tokens
        return Sample(
            started=started,
            ended=time.perf_counter(),
            arrivals=tuple(received.arrivals),
            tokens=len(received.arrivals) if tokens is None else tokens,
            counted_by_server=tokens is not None,
            speculation=received.report.speculation() if received.report else None,
            error=error,
        )

    async def read(self, prompt: Prompt, max_tokens: int, received: Received) -> None:
        """Fill `received` with one response. Raises RequestFailedError unless the text came to its end."""
        body = _body(self.model, prompt, max_tokens) | self.dialect.keys(prompt.traffic_class)
        try:
            async with self.http.stream("POST", "chat/completions", json=body) as response:
                await _require_ok(response)
                async for event in httpx2.EventSource(response):
                    if event.data == "[DONE]":
                        break
                    received.take(_parse(event.data))
        except httpx2.HTTPError as error:
            raise RequestFailedError(clause(error)) from error
        if not received.finished:
            raise RequestFailedError("the stream ended before the text did")


@asynccontextmanager
async def connect(url: str, api_key: str | None, model: str | None, max_tokens: int) -> AsyncIterator[Server]:
    """Find model and dialect, with a warm-up request that nobody counts.

    Raises ServerRefusedError when there is no server, or none that generates.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = httpx2.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    base = api_base(url)
    async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=timeout, limits=limits) as http:
        name = model or await _first_model(http, base)
        yield await _settle_dialect(http, base, name, max_tokens)


def api_base(url: str) -> str:
    """The address below which OpenAI's paths lie: `/v1` is added where it is missing."""
    base = url.rstrip("/")
    return f"{base}/" if base.endswith("/v1") else f"{base}/v1/"


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def _first_model(http: httpx2.AsyncClient, base: str) -> str:
    try:
        response = await http.get("models")
        await _require_ok(response)
        models = msgspec.json.decode(response.content, type=_Models).data
    except httpx2.HTTPError as error:
        raise ServerRefusedError(f"No server answers at {base}: {clause(error)}.") from error
    except RequestFailedError as error:
        raise ServerRefusedError(f"The server at {base} does not list its models: {error}.") from error
    except msgspec.MsgspecError as error:
        raise ServerRefusedError(f"{base}models is not a list of models as OpenAI's: {error}.") from error
    if not models:
        raise ServerRefusedError(f"The server at {base} lists no model.")
    return models[0].id


async def _settle_dialect(http: httpx2.AsyncClient, base: str, model: str, max_tokens: int) -> Server:
    refusal: RequestFailedError | None = None
    for dialect in DIALECTS:
        server = Server(http, model, dialect)
        try:
            await server.read(WARM_UP, max_tokens, Received())
        except RequestFailedError as error:
            refusal = error
            if not error.body_was_refused:
                break
        else:
            return server
    raise ServerRefusedError(f"The server at {base} refuses the warm-up request: {refusal}.")


def _body(model: str, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt.text}],
        "max_tokens": max_tokens,
        "temperature": prompt.temperature,
        "stream": True,
    }


def _parse(data: str) -> Chunk:
    try:
        chunk = msgspec.json.decode(data, type=Chunk)
    except msgspec.MsgspecError as error:
        raise RequestFailedError(f"a chunk is not as OpenAI's: {error}") from error
    if chunk.error is not None:
        raise RequestFailedError(error_message(chunk.error))
    return chunk


async def _require_ok(response: httpx2.Response) -> None:
    if response.status_code == httpx2.codes.OK:
        return
    content = await response.aread()
    try:
        reason = error_message(msgspec.json.decode(content, type=dict[str, Any])["error"])
    except (msgspec.MsgspecError, KeyError):
        reason = response.reason_phrase
    raise RequestFailedError(f"HTTP {response.status_code}: {reason}", response.status_code)
