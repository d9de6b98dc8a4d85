"""Commands: who may have which one carried out, and what is answered."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from specd.errors import UserError
from specd.mqtt.link import Incoming

log: Final = logging.getLogger(__name__)

Arguments = dict[str, Any]
Act = Callable[[Arguments], Awaitable[dict[str, Any]]]
"""Carries out a command. Raises `UserError` for what it refuses; the message is the answer."""

Outcome = Literal["done", "refused", "failed"]

_AT_ONCE: Final = 8
_UNANSWERED: Final = 64
_LONGEST_NAME: Final = 32


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a command."""

    verb: str
    outcome: Outcome
    result: dict[str, Any]
    """Of the act, or the key `error` with a sentence."""

    def payload(self, node: str) -> bytes:
        """As JSON."""
        message = {"node": node, "command": self.verb, "ok": self.outcome == "done", **self.result}
        return json.dumps(message, ensure_ascii=False).encode()


class Desk:
    """Takes commands, several at a time: one that loads a model does not hold up the next."""

    def __init__(
        self, acts: Mapping[str, Act], answered: Callable[[Incoming, Answer], Awaitable[None]]
    ) -> None:
        """`acts`: what can be done at all, by verb. `answered` is awaited with each command's outcome."""
        self._acts = acts
        self._answered = answered
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, verb: str, message: Incoming, allowed: Collection[str]) -> None:
        """Carry it out, or refuse it, and have it answered."""
        if len(self._tasks) >= _UNANSWERED:
            log.warning("a command by MQTT is dropped without an answer: %d wait for one", len(self._tasks))
            return
        why_not = self._refusal(verb, message, allowed)
        work = self._carry_out(verb, message) if why_not is None else self._refuse(verb, message, why_not)
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Cancel what is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _refusal(self, verb: str, message: Incoming, allowed: Collection[str]) -> str | None:
        if message.retained:
            return (
                "a retained command would be carried out again at every reconnect: publish it without the retain"
                " flag, and clear the topic with an empty retained message"
            )
        if verb not in allowed:
            return f"mqtt.commands allows {', '.join(allowed)}: add the command there and reload"
        if verb not in self._acts:
            return f"this version of specd cannot do that by MQTT; it can do {', '.join(self._acts)}"
        if len(self._tasks) >= _AT_ONCE:
            return f"{_AT_ONCE} commands are under way: wait for an answer, then send it again"
        return None

    async def _refuse(self, verb: str, message: Incoming, why: str) -> None:
        await self._tell(message, Answer(verb[:_LONGEST_NAME], "refused", {"error": why}))

    async def _carry_out(self, verb: str, message: Incoming) -> None:
        try:
            answer = Answer(verb, "done", await self._acts[verb](arguments(message.payload)))
        except UserError as error:
            answer = Answer(verb, "refused", {"error": str(error)})
        except Exception:
            # Whatever is wrong with one command, the next one must find somebody.
            log.exception("the command %s failed", verb)
            answer = Answer(verb, "failed", {"error": "specd failed at it; its log says more"})
        await self._tell(message, answer)

    async def _tell(self, message: Incoming, answer: Answer) -> None:
        why = f": {answer.result['error']}" if "error" in answer.result else ""
        level = logging.INFO if answer.outcome == "done" else logging.WARNING
        log.log(level, "command %r by MQTT %s%s", answer.verb, answer.outcome, why)
        await self._answered(message, answer)


def arguments(payload: bytes) -> Arguments:
    """The JSON object of a command; an empty payload is an empty one. Raises `UserError`."""
    try:
        found = json.loads(payload) if payload.strip() else {}
    except (ValueError, RecursionError):  # the latter of what is nested without end
        found = None
    if not isinstance(found, dict):
        raise UserError('the payload must be a JSON object, such as {"path": "/models/next"}, or empty')
    return found
