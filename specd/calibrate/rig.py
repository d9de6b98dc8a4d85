"""An engine process that nobody else uses, told what to write and timed from outside, as its clients would."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import structs

from engine.api import (
    Cancel,
    Configure,
    FromEngine,
    Idle,
    Launch,
    Loading,
    Ready,
    Refused,
    Request,
    StepReport,
    Submit,
    ToEngine,
)
from policies.cost import StepCosts
from policies.settings import PolicySettings
from specd.engine_process import EngineGoneError, EngineProcess
from specd.errors import UserError

_GRACE = 5.0
_PROMPT_ROWS = 1024
_START_SECONDS = 600.0
_SILENCE_SECONDS = 120.0


class RigError(Exception):
    """The engine did not do what it was told: a fault of ours."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step in which all texts decoded and nothing else went on."""

    seconds: float  # since the report of the step before
    tokens: int
    rounds: Counter[str]  # by traffic class
    tokens_by_class: Counter[str]


class _Seen(NamedTuple):
    at: float
    report: StepReport


class Rig:
    """One engine with nothing else to do."""

    def __init__(self, process: EngineProcess, launch: Launch) -> None:
        self._process = process
        self._launch = launch

    async def ready(self, say: Callable[[str], None]) -> Ready:
        """Wait until the model is loaded. Raises UserError where it cannot be, RigError where the engine ended."""
        while True:
            match await self._next(_START_SECONDS):
                case Ready() as ready:
                    return ready
                case Refused(message):
                    raise UserError(message)
                case Loading(message):
                    say(message)
                case other:
                    raise RigError(f"the engine sent {type(other).__name__} before it was ready")

    async def write(
        self, requests: Sequence[Request], policy: PolicySettings, enough: Callable[[Sequence[Step]], bool]
    ) -> list[Step]:
        """Have these texts written together, until one of them ends or the steps are enough; the steps in which all of
        them decoded. The engine has nothing to do before and after. Raises RigError.
        """
        self._tell(Configure(policy=policy, draft=self._launch.draft, verification=self._launch.verification))
        self._tell(*map(Submit, requests))
        writing = {request.id for request in requests}
        steps: list[Step] = []
        before = await self._report(writing)
        while not enough(steps):
            now = await self._report(writing)
            if len(writing) < len(requests):
                break
            if _is_whole(now.report, len(requests)):
                steps.append(_step(now.report, now.at - before.at))
            before = now
        self._tell(*map(Cancel, writing))
        while writing:
            await self._report(writing)
        return steps

    async def costs(self) -> StepCosts:
        """What the engine has learned of the costs of its steps, as it says when it has nothing to do."""
        while True:
            message = await self._next(_SILENCE_SECONDS)
            if isinstance(message, Idle) and message.costs is not None:
                return message.costs

    async def _report(self, writing: set[str]) -> _Seen:
        """The next one. Takes the texts that have ended out of `writing`. Raises RigError for one that failed."""
        while True:
            message = await self._next(_SILENCE_SECONDS)
            if isinstance(message, StepReport):
                seen = _Seen(time.perf_counter(), message)
                writing -= _ended(message)
                return seen

    def _tell(self, *messages: ToEngine) -> None:
        for message in messages:
            self._process.send(message)

    async def _next(self, seconds: float) -> FromEngine:
        try:
            async with asyncio.timeout(seconds):
                return await self._process.receive()
        except TimeoutError:
            raise RigError(f"the engine said nothing for {seconds:g} s") from None
        except EngineGoneError as gone:
            raise RigError(f"the engine has gone: {gone}") from gone


def prompts_first(launch: Launch) -> Launch:
    """The engine, but that it reads prompts in as few steps as it can: else the first texts have ended before the last
    ones begin. What is read once is kept for the other arms of the round.
    """
    rows = max(launch.max_batch_tokens, _PROMPT_ROWS)
    return structs.replace(launch, prefix_cache=True, rows_beside_decodes=0, max_batch_tokens=rows)


@asynccontextmanager
async def rig(command: Sequence[str], launch: Launch) -> AsyncIterator[Rig]:
    """An engine, which ends with the block."""
    process = await EngineProcess.start(command)
    try:
        process.send(launch)
        yield Rig(process, launch)
    finally:
        await process.end(grace=_GRACE)


def _ended(report: StepReport) -> set[str]:
    for output in report.outputs:
        if output.finish == "error":
            raise RigError(f"the engine did not write a text: {output.error}")
    return {output.id for output in report.outputs if output.finish is not None}


def _is_whole(report: StepReport, texts: int) -> bool:
    """Whether all texts decoded in this step, and nothing else went on."""
    return report.prefill_rows == 0 and len(report.rounds) == texts


def _step(report: StepReport, seconds: float) -> Step:
    rounds, tokens = Counter[str](), Counter[str]()
    for each in report.rounds:
        rounds[each.traffic_class] += 1
        tokens[each.traffic_class] += each.accepted + 1
    return Step(seconds, report.committed, rounds, tokens)
