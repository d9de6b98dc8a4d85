"""A canary's replay: the same contexts put to an engine, and what became of its drafts there.

texts      answers that the first target wrote to the prompts, greedily; all later ones are asked at places within them,
           so that what two targets are compared by does not drift apart as their own answers would
context    a prompt and a beginning of its answer; from there a few tokens are generated, drafted by one proposer
"""

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Self

from engine.api import DraftKind, Output, Request, RequestReport, SamplingParams
from policies.canary import Counts
from specd.flights import Flight
from specd.http.errors import ApiError
from specd.observers import CANARY
from specd.target.line import Line
from specd.threads import in_thread

SEGMENT: Final = 8
"""Tokens from one context to the next."""
_TOGETHER: Final = 8
_PAUSE: Final = 0.02

Texts = Sequence[Sequence[int]]
"""A prompt's answer each, as tokens."""


class Manner(NamedTuple):
    """How much an engine is asked at a time."""

    together: int
    patience: float
    """Seconds, in all, that the replay steps back for while others are served."""
    quiet: float = 0.0
    """Seconds for which nobody else must have been served before it goes on."""


class Drafts(NamedTuple):
    """What is asked of an engine's drafts."""

    proposer: DraftKind
    k: int


ALONE: Final = Manner(_TOGETHER, 0.0)
"""Of an engine that serves nobody yet."""
BESIDE: Final = Manner(1, 60.0)
"""Of one that serves, when somebody waits for the outcome."""
AT_LEISURE: Final = Manner(1, math.inf, 1.0)
"""The same when nobody does."""


async def written(line: Line, prompts: Sequence[str], tokens: int, manner: Manner) -> list[list[int]]:
    """The line's own greedy answers. Raises `UnservedError`."""
    reader, room = _Reader(line, manner), await _Room.of(line)
    asked = await encoded(line, prompts)
    fitting = [i for i, prompt in enumerate(asked) if room.holds(prompt, tokens)]
    outputs = await reader.all([room.request(asked[i], tokens) for i in fitting])
    found: list[list[int]] = [[] for _ in asked]
    for i, each in zip(fitting, outputs, strict=True):
        found[i] = [token for output in each for token in output.tokens]
    return found


async def replayed(
    line: Line, prompts: Sequence[str], texts: Texts, drafts: Drafts, manner: Manner
) -> list[Counts]:
    """The drafts at every context, summed up by prompt. Raises `UnservedError`."""
    reader, room = _Reader(line, manner), await _Room.of(line)
    asked = await encoded(line, prompts)
    contexts = [
        (i, context)
        for i, text in enumerate(texts)
        for at in room.places(text)
        if room.holds(context := [*asked[i], *text[:at]], SEGMENT)
    ]
    outputs = await reader.all([room.request(context, SEGMENT, drafts) for _, context in contexts])
    nothing = (0,) * drafts.k
    found = [Counts(nothing, nothing) for _ in texts]
    for (i, _), each in zip(contexts, outputs, strict=True):
        report = each[-1].report
        if report is not None:
            found[i] = _plus(found[i], report)
    return found


async def encoded(line: Line, prompts: Sequence[str]) -> list[list[int]]:
    """As the line's own chat template and tokenizer have them: those of no other target. Texts that its template
    refuses are read plainly.
    """
    encoder = (await line.model()).encoder

    def encode(prompt: str) -> list[int]:
        try:
            return encoder.message(prompt)
        except ApiError:
            return encoder.plain(prompt)

    return await in_thread(lambda: [encode(prompt) for prompt in prompts])


class _Reader:
    """Puts requests to a line, a few at a time."""

    def __init__(self, line: Line, manner: Manner) -> None:
        self._line = line
        self._manner = manner
        self._places = asyncio.Semaphore(manner.together)
        self._left = manner.patience
        self._quiet = manner.quiet

    async def all(self, requests: Sequence[Request]) -> list[list[Output]]:
        """The outputs of each. Raises `UnservedError` when one is not served; the others are cancelled."""
        tasks = [asyncio.create_task(self._one(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _one(self, request: Request) -> list[Output]:
        async with self._place() as flight:
            self._line.supervisor.submit(flight, request)
            return [output async for output in flight.outputs()]

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[Flight]:
        async with self._places:
            await self._step_back()
            with self._line.supervisor.flights.admit_aside(CANARY) as flight:
                yield flight

    async def _step_back(self) -> None:
        """Whoever else is served comes first, as long as there is patience."""
        others, pause = self._line.supervisor.flights, max(_PAUSE, self._manner.quiet / 10)
        while self._left > 0 and (len(others) or self._quiet > 0):
            self._quiet = self._manner.quiet if len(others) else self._quiet - pause
            await asyncio.sleep(pause)
            self._left -= pause


class _Room(NamedTuple):
    """What an engine can be asked."""

    context: int
    encodes: bool
    """Then texts do not go on from what is asked: only their beginnings can be compared."""

    @classmethod
    async def of(cls, line: Line) -> Self:
        """Raises `UnservedError`."""
        info = await line.supervisor.engine_info()
        return cls(info.max_context, info.encodes)

    def holds(self, prompt: Sequence[int], tokens: int) -> bool:
        """Whether so many tokens can follow."""
        return len(prompt) + tokens <= self.context

    def places(self, text: Sequence[int]) -> range:
        """Where in an answer it is asked."""
        return range(0, 1 if self.encodes else max(len(text), 1), SEGMENT)

    def request(self, prompt: list[int], tokens: int, drafts: Drafts | None = None) -> Request:
        """Greedy; drafts: whose, None for whatever the policy chooses."""
        return Request(
            id=f"{CANARY}-{secrets.token_hex(8)}",
            prompt=prompt,
            sampling=SamplingParams(max_tokens=tokens, temperature=0.0),
            continues=not self.encodes,
            k=None if drafts is None else drafts.k,
            proposer=None if drafts is None else drafts.proposer,
            traffic_class=CANARY,
            tenant=CANARY,
        )


def _plus(counts: Counts, report: RequestReport) -> Counts:
    def added(old: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
        return tuple(n + (more[j] if j < len(more) else 0) for j, n in enumerate(old))

    return Counts(added(counts.examined, report.examined), added(counts.accepted, report.accepted))
