"""Clients that chat without end, as many as are wanted at the moment."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Final

import httpx2

from specd.bench.client import Server
from specd.bench.prompts import Prompt, prompts
from specd.bench.sample import Sample
from specd.errors import DaemonError
from specd.tasks import ended

_TOKENS: Final = 64
_AFTER_AN_ERROR: Final = 1.0


class Crowd:
    """Whoever makes one must `leave`."""

    def __init__(self, server: Server, mix: str = "chat") -> None:
        """server: answers that end by themselves are taken as they are."""
        self._server = replace(server, dialect=replace(server.dialect, ignore_eos=False))
        self._prompts: Iterator[Prompt] = prompts(mix)
        self._wanted = 0
        self._clients: dict[int, asyncio.Task[None]] = {}
        self._names = count()
        self.samples: list[Sample] = []
        """Of all answers, in the order in which they ended."""

    def become(self, clients: int) -> None:
        """From now on so many ask. Those that are too many go when their answer has ended."""
        self._wanted = clients
        while len(self._clients) < clients:
            name = next(self._names)
            self._clients[name] = asyncio.create_task(self._chat(name))

    async def leave(self) -> None:
        """Nobody asks any more, and nobody waits for an answer."""
        self._wanted = 0
        for client in list(self._clients.values()):
            await ended(client)

    async def answer(self, question: str) -> str:
        """To one question more, always the same of the same target but for ties. Raises `DaemonError`."""
        body = {
            "model": self._server.model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": _TOKENS,
            "temperature": 0,
        }
        try:
            response = await self._server.http.post("chat/completions", json=body)
            response.raise_for_status()
        except httpx2.HTTPError as error:
            raise DaemonError(f"a chat was not answered: {error}") from None
        text: str = response.json()["choices"][0]["message"]["content"]
        return text

    async def _chat(self, name: int) -> None:
        try:
            while len(self._clients) <= self._wanted:
                sample = await self._server.ask(next(self._prompts), _TOKENS)
                self.samples.append(sample)
                if sample.error is not None:
                    await asyncio.sleep(_AFTER_AN_ERROR)
        finally:
            del self._clients[name]
