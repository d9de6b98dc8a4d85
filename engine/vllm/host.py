"""vLLM's engine at work: requests go in, outputs and reports come out together."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from msgspec import structs

from engine.admission import refusal
from engine.api import (
    Cancel,
    Configure,
    FromEngine,
    Idle,
    Launch,
    Move,
    Output,
    Request,
    SamplingParams,
    Shutdown,
    StepReport,
    Submit,
    ToEngine,
)
from engine.text import TextStream
from engine.vllm.account import Account
from engine.vllm.link import Listener
from engine.vllm.sampling import sampling_arguments, structure, tags, unsupported_reason
from engine.vllm.start import Started
from engine.vllm.texts import Text, likelihoods
from engine.wire import frame, next_to_engine

_IDLE_SECONDS: Final = 0.5
_FOR_OUTPUTS: Final = 0.05  # seconds that a report waits for the outputs of its step
_FOR_REPORTS: Final = 0.2  # seconds that outputs wait for the report of theirs
_log = logging.getLogger("specd.engine")


class CoreGoneError(Exception):
    """The process with vLLM's engine core has ended; why, it has written itself."""


class Host:
    """Between the daemon and vLLM, until one of them ends."""

    def __init__(
        self,
        launch: Launch,
        started: Started,
        listener: Listener,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        niceness: int,
    ) -> None:
        """listener: hears the scheduler. niceness: that of this process where it need not step back."""
        self._launch = launch
        self._started = started
        self._engine = started.engine
        self._listener = listener
        self._reader, self._writer = reader, writer
        self._niceness = niceness
        self._limits = started.limits(launch)
        self._drafts = any(kind != "none" for kind in launch.draft.kinds)
        self._account = Account(started.blocks, launch.draft.kinds, self._send)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._due: asyncio.TimerHandle | None = None
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, heard: asyncio.Queue[FromEngine]) -> None:
        """Until the daemon says so or has gone. heard: from the scheduler. Raises CoreGoneError."""
        tasks = [asyncio.ensure_future(work) for work in (self._read(), self._hear(heard), self._rest())]
        for task in tasks:
            task.add_done_callback(self._ended)
        try:
            await self._end
        finally:
            for task in (*tasks, *self._tasks.values()):
                task.cancel()
            await asyncio.gather(*tasks, *self._tasks.values(), return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A part has: so does the whole."""
        if self._end.done() or task.cancelled():
            return
        fault = task.exception()
        if fault is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(fault)

    async def _read(self) -> None:
        while (message := await next_to_engine(self._reader)) is not None:
            if isinstance(message, Shutdown):
                return
            self._take(message)

    def _take(self, message: ToEngine) -> None:
        match message:
            case Submit(request=request):
                self._submit(request)
            case Cancel(id=request_id):
                self._cancel(request_id)
            case Configure() as orders:
                self._listener.configure(self._possible(orders))
            case Move(share=share) if share != "behind":
                os.setpriority(os.PRIO_PGRP, 0, self._niceness)
            case _:
                _log.debug("%s changes nothing here", type(message).__name__)

    async def _hear(self, heard: asyncio.Queue[FromEngine]) -> None:
        while True:
            report = await heard.get()
            if isinstance(report, StepReport):
                self._account.hear(report)
                self._settle_within(_FOR_OUTPUTS if self._account.awaits_outputs else self._patience())
                await self._writer.drain()

    async def _rest(self) -> None:
        """While there is nothing to do: is the core still there?"""
        while True:
            await asyncio.sleep(_IDLE_SECONDS)
            if self._account.is_empty:
                async with _core():
                    await self._engine.is_sleeping()
                if self._account.is_empty:
                    self._send(Idle(self._account.steps, self._account.at_rest))

    def _possible(self, orders: Configure) -> Configure:
        """What of it a running vLLM can do: who drafts was settled at its start, whether anybody does was not."""
        launched = self._launch.draft
        policy = orders.policy
        if set(launched.kinds).isdisjoint(orders.draft.kinds):
            policy = replace(policy, kind="off")
        return structs.replace(orders, policy=policy, draft=launched)

    def _unsupported(self, sampling: SamplingParams) -> str | None:
        return unsupported_reason(sampling, drafts=self._drafts, device=self._launch.device)

    def _submit(self, request: Request) -> None:
        reason = refusal(request, self._limits) or self._unsupported(request.sampling)
        for index in range(1 if reason else request.n):
            text = Text(request, index, self._stream(request))
            self._account.open(text)
            if reason:
                self._add(text, text.give_up("error", reason, refused=True))
            else:
                self._tasks[text.id] = task = asyncio.ensure_future(self._follow(text))
                task.add_done_callback(partial(self._followed, text.id))

    def _stream(self, request: Request) -> TextStream | None:
        tokenizer = self._started.tokenizer
        return None if tokenizer is None or not request.sampling.stop else TextStream.of(tokenizer, request)

    def _cancel(self, request: str) -> None:
        for text in list(self._account.texts_of(request)):
            if text.id in self._tasks:
                self._tasks[text.id].cancel()
            self._add(text, text.give_up("cancelled"))

    def _followed(self, name: str, task: asyncio.Task[None]) -> None:
        del self._tasks[name]
        if not task.cancelled() and task.exception() is not None:
            self._ended(task)

    async def _follow(self, text: Text) -> None:
        """Hand a text to vLLM, and on what comes of it. Raises CoreGoneError."""
        from vllm.exceptions import GracefulHTTPError, VLLMClientError  # noqa: PLC0415  see engine.vllm.start
        from vllm.v1.engine.exceptions import EngineGenerateError  # noqa: PLC0415

        try:
            async with _core(), contextlib.aclosing(self._generated(text)) as found:
                async for one in found:
                    self._add(text, self._output(text, one))
                    if text.ended:  # by a stop string: vLLM is told by closing
                        return
            self._add(text, text.give_up("error", "vLLM stopped this request half-way; send it again"))
        except (VLLMClientError, ValueError) as fault:
            self._add(text, text.give_up("error", str(fault), refused=True))
        except (GracefulHTTPError, EngineGenerateError) as fault:
            cause = fault.__cause__ or fault
            self._add(text, text.give_up("error", f"vLLM failed ({cause}); send the request again"))

    def _generated(self, text: Text) -> Any:
        from vllm import SamplingParams  # noqa: PLC0415  see engine.vllm.start
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams  # noqa: PLC0415

        sampling = text.request.sampling
        arguments = sampling_arguments(
            sampling, text.index, vocabulary=self._started.vocabulary, ends=self._started.ends
        )
        if sampling.grammar is not None:
            arguments["structured_outputs"] = StructuredOutputsParams(**structure(sampling.grammar))
        parameters = SamplingParams(
            **arguments,
            output_kind=RequestOutputKind.DELTA,
            skip_clone=True,  # nobody else has them
            extra_args=tags(text.request, text.id, self._launch.draft.kinds),
        )
        prompt = {"type": "token", "prompt_token_ids": text.request.prompt}
        return self._engine.generate(prompt, parameters, text.id)

    def _output(self, text: Text, found: Any) -> Output:
        """found: vLLM's `RequestOutput`. One that cannot be read is no fault of the request's."""
        try:
            return _taken(text, found)
        except ValueError:
            _log.exception("an answer of vLLM's to %s cannot be read", text.id)
            return text.give_up("error", "an answer of vLLM's cannot be read; the log of specd says why")

    def _add(self, text: Text, output: Output) -> None:
        self._account.add(text, output)
        self._settle_within(self._patience())

    def _patience(self) -> float:
        """Seconds that outputs wait: not at all where all is known, or where nobody would tell more."""
        waits = self._account.awaits_reports and self._listener.connected
        return _FOR_REPORTS if waits else 0.0

    def _settle_within(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if self._due is not None:
            if self._due.when() <= when:
                return
            self._due.cancel()
        self._due = loop.call_at(when, self._settle)

    def _settle(self) -> None:
        self._due = None
        self._account.settle()

    def _send(self, message: FromEngine) -> None:
        self._writer.write(frame(message))


def _taken(text: Text, found: Any) -> Output:
    (one,) = found.outputs
    sampling, tokens = text.request.sampling, list(one.token_ids)
    prompt_logprobs = likelihoods(found.prompt_logprobs, text.request.prompt, sampling.prompt_logprobs)
    return text.take(
        tokens,
        one.finish_reason,
        cached=found.num_cached_tokens or 0,
        logprobs=likelihoods(one.logprobs if tokens else None, tokens, sampling.logprobs),
        prompt_logprobs=prompt_logprobs,
    )


@contextlib.asynccontextmanager
async def _core() -> AsyncIterator[None]:
    """Raises CoreGoneError for what vLLM raises then."""
    from vllm.v1.engine.exceptions import EngineDeadError  # noqa: PLC0415  see engine.vllm.start

    try:
        yield
    except EngineDeadError as dead:
        raise CoreGoneError("the process of vLLM's engine core has ended") from dead
