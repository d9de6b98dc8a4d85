"""The canary's prompts, asked of an engine through its own API: one at a time, and when nobody else is served.

Where an answer does not say what became of its drafts, the counters before and after it do, as long as nobody else's
request was in between: so many tokens were counted as the answer has, and no other ended or runs. Otherwise it is asked
again, and after some tries left out.
"""

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import isnan
from typing import Any, Final, NamedTuple

import msgspec

from policies.observed import Answer, Counters, Interval, Look, Manner, Report, interval
from policies.observed.gather import POSITIONS
from specd.config.observe import ObservedKind
from specd.observe.answer import ASKED_FOR, Told, told
from specd.observe.errors import ObserveError, RefusedError
from specd.observe.peer import Peer

_PAUSE: Final = 0.25
_TRIES: Final = 3
_SETTLES: Final = 8
"""Looks until the counters have the answer in them: some are brought up to date a moment later."""
_SECONDS: Final = 120.0
"""For one answer."""

_CHAT: Final = "/v1/chat/completions"
_COMPLETIONS: Final = "/v1/completions"
_NO_CHATS: Final = frozenset({400, 404, 405, 422})
"""Statuses of an engine that has no chats, or none with this model. Others are of the moment, or of the key."""

Looker = Callable[[], Awaitable[Counters | None]]


class Replay(msgspec.Struct, frozen=True):
    """What came of it, by prompt; None where there is nothing to be said."""

    asked: str
    """Which prompts, and for how many tokens: only what was asked the same can be compared."""
    answers: list[Answer | None]
    drafts: list[Told | None]


class Question(NamedTuple):
    """What is asked."""

    kind: ObservedKind
    model: str
    prompts: Sequence[str]
    tokens: int

    @property
    def digest(self) -> str:
        """Of what is asked. Where it is asked is the target's doing: another one may have no chat template."""
        return hashlib.sha256(repr((tuple(self.prompts), self.tokens)).encode()).hexdigest()[:12]


class Asker:
    """One replay."""

    def __init__(self, peer: Peer, question: Question, look: Looker, patience: float) -> None:
        """look: at the counters. patience: seconds, in all, to wait for others to be served."""
        self._peer = peer
        self._question = question
        self._look = look
        self._left = patience
        self._path = _CHAT

    async def replay(self) -> Replay:
        """Ask everything. Raises `ObserveError` where the engine does not answer."""
        await asyncio.sleep(random.uniform(0, _PAUSE))  # noqa: S311  other observers were waiting for the same moment
        await self._choose_path()
        found = [await self._ask(prompt) for prompt in self._question.prompts]
        return Replay(self._question.digest, [answer for answer, _ in found], [drafts for _, drafts in found])

    async def _choose_path(self) -> None:
        """A model without a chat template refuses chats. What is answered here is not looked at."""
        try:
            await self._post(self._question.prompts[0])
        except RefusedError as refused:
            if refused.status not in _NO_CHATS:
                raise
            self._path = _COMPLETIONS

    async def _ask(self, prompt: str) -> tuple[Answer | None, Told | None]:
        answer: tuple[Answer | None, Told | None] = (None, None)
        for _ in range(_TRIES):
            answer = await self._once(prompt)
            found, drafts = answer
            if drafts is not None or (found is not None and found.manner is Manner.ALONE):
                break
            if self._left <= 0:
                break
        return answer

    async def _once(self, prompt: str) -> tuple[Answer, Told | None]:
        before = await self._quiet()
        body = await self._post(prompt)
        text, tokens = _text(body), _tokens(body)
        said = told(body)
        came, alone = await self._came(before, tokens)
        by_counters = _told_of(came) if alone and came is not None else None
        best = (
            said if said is not None and (said.measure == POSITIONS or by_counters is None) else by_counters
        )
        manner = Manner.ALONE if alone else Manner.BESIDE
        return Answer(hashlib.sha256(text.encode()).hexdigest()[:12], manner), best

    async def _quiet(self) -> Counters | None:
        """The counters, once nobody else is served or patience is at its end."""
        while True:
            found = await self._look()
            if found is None or isnan(found.running) or found.running < 1 or self._left <= 0:
                return found
            await asyncio.sleep(_PAUSE)
            self._left -= _PAUSE

    async def _came(self, before: Counters | None, tokens: int) -> tuple[Counters | None, bool]:
        """What was counted since, and whether it is this answer's alone."""
        if before is None:
            return None, True
        for _ in range(_SETTLES):
            now = await self._look()
            if now is None:
                return None, True
            generated = now.generated - before.generated
            if isnan(generated) or generated >= tokens:
                return _alone(interval(before, now), before, now, tokens)
            await asyncio.sleep(_PAUSE / 4)
        return None, False

    async def _post(self, prompt: str) -> dict[str, Any]:
        chat = {"messages": [{"role": "user", "content": prompt}]}
        body = {
            "model": self._question.model,
            **(chat if self._path == _CHAT else {"prompt": prompt}),
            "max_tokens": self._question.tokens,
            "temperature": 0,
            **ASKED_FOR.get(self._question.kind, {}),
        }
        return await self._peer.post(self._path, body, _SECONDS)


def _alone(found: Interval, before: Counters, now: Counters, tokens: int) -> tuple[Counters | None, bool]:
    generated, ended = now.generated - before.generated, now.requests - before.requests
    alone = (
        (isnan(generated) or generated == tokens)
        and (isnan(ended) or ended == 1)
        and not before.running > 0
        and not now.running > 0
        and found.look in {Look.FINE, Look.IDLE}
    )
    return found.came, alone


def _told_of(came: Counters) -> Told | None:
    report = Report.of(came, 0.0)
    return None if report is None else Told(report.measure, report.examined, report.accepted)


def _text(body: Mapping[str, Any]) -> str:
    """Raises `ObserveError` where there is none."""
    try:
        choice = body["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
    except (KeyError, IndexError, TypeError):
        raise ObserveError("an answer to the canary has no text") from None
    return text if isinstance(text, str) else ""


def _tokens(body: Mapping[str, Any]) -> int:
    usage = body.get("usage")
    found = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return found if isinstance(found, int) else 0
