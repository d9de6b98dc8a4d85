"""Clients that come and go."""

import asyncio
from typing import Any, Self

import httpx2

from tests.daemon.daemon_process import DEADLINE


class Crowd:
    """As many clients as told, each with one request open; when it ends they send the next."""

    def __init__(self, url: str, **body: Any) -> None:
        self._url = f"{url}/v1/completions"
        self._body = body
        self._tasks: list[asyncio.Task[None]] = []
        self._http = httpx2.AsyncClient(timeout=DEADLINE)
        self.answers: list[httpx2.Response] = []
        self.texts: set[str] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.resize(0)
        await self._http.aclose()

    async def resize(self, size: int) -> None:
        """Who is too many leaves at once, in the middle of its request."""
        leaving, self._tasks = self._tasks[size:], self._tasks[:size]
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        self._tasks += [asyncio.ensure_future(self._client()) for _ in range(size - len(self._tasks))]

    def served(self, count: int) -> bool:
        """Whether so many requests have ended since this was last asked, each of them well and complete."""
        if len(self.answers) < count:
            return False
        answers, self.answers = self.answers, []
        for answer in answers:
            assert answer.status_code == 200, answer.text
            self.texts.add(answer.json()["choices"][0]["text"])
            assert answer.json()["usage"]["completion_tokens"] == self._body["max_tokens"]
        return True

    async def _client(self) -> None:
        while True:
            self.answers.append(await self._http.post(self._url, json=self._body))


async def seen(condition: Any, what: str) -> Any:
    """The first true value of `condition`, which looks from outside."""
    end = asyncio.get_running_loop().time() + DEADLINE
    while asyncio.get_running_loop().time() < end:
        if value := condition():
            return value
        await asyncio.sleep(0.05)
    raise AssertionError(f"waited {DEADLINE:.0f} s in vain for {what}")
