"""A small OpenAI-compatible server in a thread: it takes only the keys that it is told to."""

import asyncio
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from tests.daemon.in_thread import serving

COMMON_KEYS = {"model", "messages", "max_tokens", "temperature", "stream"}


@dataclass
class OpenAIServer:
    """Its manners, and what was asked of it."""

    extra_keys: set = field(default_factory=lambda: {"specd", "ignore_eos", "stream_options"})
    common_keys: set = field(default_factory=lambda: set(COMMON_KEYS))
    key: str | None = None
    models: tuple = ("/srv/models/tiny",)
    fail_when: object = lambda number: False
    """Requests, by their number, whose stream breaks off with an error after the first word."""
    hang_when: object = lambda number: False
    """Requests whose stream stays open without a word until the client goes away."""
    bodies: list = field(default_factory=list)
    hanging: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def app(self):
        return Starlette(
            routes=[
                Route("/v1/models", self.list_models),
                Route("/v1/chat/completions", self.complete, methods=["POST"]),
            ]
        )

    async def list_models(self, request):
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse({"error": {"message": "This key is unknown."}}, 401)
        return JSONResponse({"object": "list", "data": [{"id": name} for name in self.models]})

    async def complete(self, request):
        body = await request.json()
        unknown = body.keys() - self.common_keys - self.extra_keys
        if unknown:
            return JSONResponse({"error": {"message": f"unknown: {sorted(unknown)}"}}, 400)
        self.bodies.append(body)
        return StreamingResponse(self.stream(len(self.bodies) - 1, body), media_type="text/event-stream")

    async def stream(self, number, body):
        async for chunk in self.chunks(number, body):
            yield f"data: {json.dumps(chunk)}\n\n"
        yield "data: [DONE]\n\n"

    async def chunks(self, number, body):
        yield {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
        if self.hang_when(number):
            self.hanging.set()
            await asyncio.Event().wait()  # until the client goes away
        for _ in range(body["max_tokens"]):
            yield {"choices": [{"delta": {"content": " word"}}]}
            if self.fail_when(number):
                yield {"error": {"message": "The engine died."}}
                return
        yield {"choices": [{"delta": {}, "finish_reason": "length"}]}
        if "stream_options" in body:
            yield {"choices": [], "usage": {"completion_tokens": body["max_tokens"]}} | self.report(body)

    def report(self, body):
        if "specd" not in body:
            return {}
        return {"specd": {"rounds": 2, "drafted": 4, "examined": [2, 2], "accepted": [2, 1]}}

    @contextmanager
    def running(self):
        """Serve on a free port until the block ends."""
        with serving(self.app()) as port:
            self.url = f"http://127.0.0.1:{port}"
            yield self
