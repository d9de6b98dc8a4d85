"""An engine of others as it looks from outside: the pages of vLLM or llama.cpp, over numbers that tests set."""

import asyncio
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.routing import Route

from tests.daemon.openai_server import OpenAIServer

ROUNDS = 12
"""Of each answer."""


@dataclass
class ObservedEngine(OpenAIServer):
    """Its counters, what it serves, and its manners."""

    kind: str = "vllm"
    name: str = "demo"
    root: str = "/models/demo"
    started: float = 100.0
    k: int = 3
    kept: tuple = (0.7, 0.5, 0.3)
    """Of its answers' rounds, by position."""
    target: str = "one"
    """Answers follow from it and the prompt."""
    positions: bool = True
    fault: object = None
    """"down", "html", "slow" or "garbage", for metrics."""
    chats: bool = True
    """Whether its model has a chat template."""
    refuses: int | None = None
    """The status with which it answers whatever is asked."""
    breaks_after: float = float("inf")
    """So many questions."""
    crowd: int = 0
    """Tokens that others are counted for whenever an answer is."""
    busy: int = 0
    """Requests that it says run."""
    drafts: float = 0
    drafted: float = 0
    accepted: float = 0
    per_position: list = field(default_factory=lambda: [0.0] * 3)
    generated: float = 0
    requests: float = 0
    asked: list = field(default_factory=list)

    def app(self):
        return Starlette(
            routes=[
                Route("/metrics", self.metrics),
                Route("/v1/models", self.list_models),
                Route("/version", lambda _: JSONResponse({"version": "0.32.0"})),
                Route("/props", self.props),
                Route("/v1/chat/completions", self.complete, methods=["POST"]),
                Route("/v1/completions", self.complete, methods=["POST"]),
            ]
        )

    def traffic(self, rounds: int, kept: tuple, *, requests: int = 1, phantom: int = 0) -> None:
        """So many rounds of others, of which such shares kept their first, second and third token."""
        counts = [round(rounds * share) for share in kept]
        self.drafts += rounds + phantom
        self.drafted += (rounds + phantom) * self.k
        self.accepted += sum(counts)
        self.generated += rounds + sum(counts)
        self.requests += requests
        self.per_position = [a + b for a, b in zip(self.per_position, counts, strict=True)]

    def restart(self, **changed) -> None:
        """Another process, with counters at 0."""
        self.started += 1000.0
        self.drafts = self.drafted = self.accepted = self.generated = self.requests = 0
        self.per_position = [0.0] * 3
        for name, value in changed.items():
            setattr(self, name, value)

    async def metrics(self, _):
        match self.fault:
            case "down":
                return PlainTextResponse("no", 503)
            case "html":
                return HTMLResponse("<html>Sign in</html>")
            case "garbage":
                return PlainTextResponse("ok, all is well\n")
            case "slow":
                await asyncio.sleep(5)
        return PlainTextResponse("\n".join(self.samples()) + "\n")

    def samples(self):
        vllm = self.kind == "vllm"
        prefix, labels = ("vllm:", 'engine="0",model_name="demo"') if vllm else ("llamacpp:", "")
        of = f"{{{labels}}}" if labels else ""
        yield f"# HELP {prefix}spec_decode_num_drafts_total Of rounds."
        yield f"{prefix}spec_decode_num_drafts_total{of} {self.drafts}"
        yield f"{prefix}spec_decode_num_draft_tokens_total{of} {self.drafted}"
        yield f"{prefix}spec_decode_num_accepted_tokens_total{of} {self.accepted}"
        for position, count in enumerate(self.per_position if self.positions else ()):
            both = ",".join([*([labels] if labels else []), f'position="{position}"'])
            yield f"{prefix}spec_decode_num_accepted_tokens_per_pos_total{{{both}}} {count}"
        if vllm:
            yield f"vllm:generation_tokens_total{of} {self.generated}"
            yield f'vllm:request_success_total{{{labels},finished_reason="stop"}} {self.requests}'
            yield f'vllm:request_success_total{{{labels},finished_reason="length"}} 0'
            yield f"vllm:num_requests_running{of} {self.busy}"
            yield f"process_start_time_seconds {self.started:.2f}"
        else:
            yield f"llamacpp:tokens_predicted_total {self.generated}"
            yield f"llamacpp:requests_processing {self.busy}"

    async def list_models(self, _):
        self.asked.append("models")
        card = {"id": self.name, "object": "model", "created": len(self.asked), "owned_by": self.kind}
        if self.kind == "vllm":
            card |= {"root": self.root, "max_model_len": 2048}
        else:
            card |= {"meta": {"n_params": 135, "size": 270, "n_vocab": 49152}}
        return JSONResponse({"object": "list", "data": [card]})

    async def props(self, _):
        if self.kind == "vllm":
            return JSONResponse({"detail": "Not Found"}, 404)
        template = "{% for m in messages %}" * 9
        return JSONResponse({"model_path": self.root, "chat_template": template, "build_info": "b1"})

    async def complete(self, request):
        body = await request.json()
        self.bodies.append(body)
        if self.refuses is not None:
            return JSONResponse({"error": {"message": "Not now."}}, self.refuses)
        if "messages" in body and not self.chats:
            return JSONResponse({"error": {"message": "There is no chat template."}}, 400)
        if len(self.bodies) > self.breaks_after:
            return JSONResponse({"error": {"message": "The engine died."}}, 500)
        prompt = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        before = self.generated
        self.traffic(ROUNDS, self.kept)
        tokens = int(self.generated - before)
        self.generated += self.crowd
        text = f"{self.target} says: {prompt}"
        usage = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": tokens + 9}
        said = {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
        choice = {"index": 0, **said, "finish_reason": "length"}
        return JSONResponse({"choices": [choice], "usage": usage})
