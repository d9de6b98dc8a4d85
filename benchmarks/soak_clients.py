"""Clients of `benchmarks.soak`: requests of every sort, some of which are left before they are answered."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any, Final

import httpx2

from benchmarks.running import Daemon
from specd.bench.prompts import prompts

_PATIENCE: Final = 180.0
_REMEMBERED: Final = 20
_LEAVES: Final = 0.2
_THINKS: Final = 0.3  # seconds between a client's requests, on average


class Outcome(StrEnum):
    """What became of a request."""

    ANSWERED = "answered"
    REFUSED = "refused"
    """An error of OpenAI's shape instead of an answer."""
    BROKEN_OFF = "broken off"
    """A stream that ended with an error event."""
    LEFT = "left by the client"
    UNANSWERED = "without an answer"
    """None of these: a connection that was cut, silence, a stream without an end, a fault of the daemon's own."""


@dataclass
class Tally:
    """What became of all of them."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    """Of refusals and of streams that broke off."""
    unanswered: list[str] = field(default_factory=list)
    """In words, the first few."""

    def note(self, outcome: Outcome, why: str = "") -> None:
        """One more; why: the code of an error, or what went wrong."""
        self.outcomes[outcome] += 1
        if outcome in {Outcome.REFUSED, Outcome.BROKEN_OFF}:
            self.codes[why] += 1
        elif outcome is Outcome.UNANSWERED and len(self.unanswered) < _REMEMBERED:
            self.unanswered.append(why)


def bodies(seed: int, *, plain: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and body of requests without end. plain: only what an engine without a model understands."""
    chance = Random(seed)  # noqa: S311  what is asked for, not a secret
    for prompt in prompts("mixed", seed):
        body: dict[str, Any] = {
            "max_tokens": chance.choice((1, 16, 48, 160)),
            "temperature": chance.choice((0.0, 0.0, 0.8)),
            "stream": chance.random() < 0.6,
            "user": chance.choice(("ann", "bob", "eve")),
            "specd": {"class": prompt.traffic_class, "report": chance.random() < 0.5},
        }
        if not plain:
            body |= _unusual(chance)
        if chance.random() < 0.03:
            body["max_tokens"] = -1
        if chance.random() < 0.5:
            yield "/v1/completions", body | {"prompt": prompt.text}
        else:
            yield "/v1/chat/completions", body | {"messages": [{"role": "user", "content": prompt.text}]}


def _unusual(chance: Random) -> dict[str, Any]:
    which = chance.random()
    if which < 0.1:
        return {"n": 2, "temperature": 0.9, "seed": chance.randrange(1 << 31)}
    if which < 0.2:
        return {"stop": ["\n\n", "."]}
    if which < 0.3:
        return {"response_format": {"type": "json_object"}}
    if which < 0.4:
        return {"specd": {"speculate": "off"}}
    if which < 0.45:
        return {"frequency_penalty": 0.5}
    return {}


class Clients:
    """So many, each with one request open at a time, until they are told to rest."""

    def __init__(self, daemon: Daemon, tally: Tally, count: int, seed: int, *, plain: bool) -> None:
        self._daemon = daemon
        self._tally = tally
        self._chance = Random(seed)  # noqa: S311
        self._bodies = bodies(seed, plain=plain)
        self._goes_on = asyncio.Event()
        self._busy = 0
        self._tasks = [asyncio.create_task(self._client()) for _ in range(count)]

    def go_on(self) -> None:
        """Ask again."""
        self._goes_on.set()

    async def rest(self) -> None:
        """Ask nothing more; returns once all that was asked has been answered."""
        self._goes_on.clear()
        while self._busy:  # noqa: ASYNC110  a matter of a second
            await asyncio.sleep(0.05)

    async def aclose(self) -> None:
        """Go away."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _client(self) -> None:
        while True:
            await self._goes_on.wait()
            self._busy += 1
            try:
                await self._one()
            finally:
                self._busy -= 1
            await asyncio.sleep(self._chance.expovariate(1 / _THINKS))

    async def _one(self) -> None:
        path, body = next(self._bodies)
        leaves = self._chance.uniform(0.0, 2.0) if self._chance.random() < _LEAVES else None
        try:
            async with asyncio.timeout(leaves):
                outcome, why = await self._asked(path, body)
        except TimeoutError:
            outcome, why = Outcome.LEFT, ""
        except httpx2.TransportError as error:
            outcome, why = Outcome.UNANSWERED, f"{path}: {type(error).__name__}: {error}"
        self._tally.note(outcome, why)

    async def _asked(self, path: str, body: dict[str, Any]) -> tuple[Outcome, str]:
        request = self._daemon.http.build_request(
            "POST", self._daemon.url + path, json=body, timeout=_PATIENCE
        )
        answer = await self._daemon.http.send(request, stream=True)
        try:
            if answer.status_code == httpx2.codes.OK and body["stream"]:
                return await _streamed(answer)
            return _whole(answer.status_code, await answer.aread())
        finally:
            await answer.aclose()


async def _streamed(answer: httpx2.Response) -> tuple[Outcome, str]:
    last = ""
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            last = line.removeprefix("data: ")
    if last == "[DONE]":
        return Outcome.ANSWERED, ""
    return _error(last, Outcome.BROKEN_OFF) or (Outcome.UNANSWERED, f"a stream that ends in {last[:200]!r}")


def _whole(status: int, content: bytes) -> tuple[Outcome, str]:
    if status == httpx2.codes.OK and "choices" in json.loads(content):
        return Outcome.ANSWERED, ""
    text = content.decode(errors="replace")
    return _error(text, Outcome.REFUSED) or (Outcome.UNANSWERED, f"status {status} with {text[:200]!r}")


def _error(text: str, outcome: Outcome) -> tuple[Outcome, str] | None:
    """What an error says; None where it is none. A fault of the daemon's own is no answer."""
    try:
        code = json.loads(text)["error"]["code"] or "invalid"
    except (ValueError, LookupError, TypeError):
        return None
    return (Outcome.UNANSWERED, text[:200]) if code == "internal_error" else (outcome, str(code))
