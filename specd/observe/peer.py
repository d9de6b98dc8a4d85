"""The way to an engine that is looked at: requests that end in time, and answers that are bounded."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import httpx2
import msgspec

from specd.alerts.addresses import client
from specd.config.observe import ObserveSection
from specd.config.reload import redacted
from specd.errors import clause
from specd.observe.errors import ObserveError, RefusedError

_MOST_BYTES: Final = 8 << 20
_SHOWN: Final = 80
_decode: Final = msgspec.json.Decoder().decode


class Peer:
    """Asks. Every method raises `ObserveError`; of what the engine refuses, `RefusedError`."""

    def __init__(self, section: ObserveSection) -> None:
        """Raises `ObserveError` where the file with the key cannot be read. section: its URLs and key stay."""
        self.section = section
        self._headers = _authorization(section)
        self._client = client(private=section.private_addresses)

    async def metrics(self) -> str:
        """The page for Prometheus."""
        status, text = await self._ask("GET", self.section.metrics, self.section.timeout_seconds)
        if status != httpx2.codes.OK:
            raise ObserveError(f"{redacted(self.section.metrics)} answers {status}: {_shown(text)}")
        return text

    async def look(self, path: str) -> dict[str, Any] | None:
        """The JSON object there; None where there is no such page."""
        url = f"{self.section.url}{path}"
        status, text = await self._ask("GET", url, self.section.timeout_seconds)
        if status in {404, 405, 501}:
            return None
        return _object(redacted(url), status, text)

    async def post(self, path: str, body: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The JSON object that comes back."""
        url = f"{self.section.url}{path}"
        status, text = await self._ask("POST", url, seconds, body)
        return _object(redacted(url), status, text)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _ask(
        self, method: str, url: str, seconds: float, body: Mapping[str, Any] | None = None
    ) -> tuple[int, str]:
        try:
            async with asyncio.timeout(seconds):
                return await self._answer(method, url, body)
        except TimeoutError:
            raise ObserveError(f"{redacted(url)} did not answer within {seconds:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ObserveError(f"{redacted(url)} cannot be asked: {clause(error)}") from None

    async def _answer(self, method: str, url: str, body: Mapping[str, Any] | None) -> tuple[int, str]:
        found = bytearray()
        async with self._client.stream(method, url, json=body, headers=self._headers) as answer:
            async for part in answer.aiter_bytes():
                found += part
                if len(found) > _MOST_BYTES:
                    raise ObserveError(f"{redacted(url)} answers more than {_MOST_BYTES >> 20} MiB")
            if "html" in answer.headers.get("content-type", ""):
                raise ObserveError(
                    f"{url} answers a web page (HTML): it must be the root of the engine itself"
                )
        return answer.status_code, found.decode(errors="replace")


def _authorization(section: ObserveSection) -> dict[str, str]:
    if section.key_file is None:
        return {}
    try:
        key = section.key_file.expanduser().read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ObserveError(f"the key cannot be read from {section.key_file}: {error}") from None
    return {"authorization": f"Bearer {key}"}


def _object(url: str, status: int, text: str) -> dict[str, Any]:
    if status != httpx2.codes.OK:
        message = f"{url} answers {status}: {_shown(text)}"
        refused = httpx2.codes.is_client_error(status)
        raise RefusedError(message, status) if refused else ObserveError(message)
    try:
        found = _decode(text)
    except msgspec.DecodeError:
        raise ObserveError(f"{url} answers no JSON: {_shown(text)}") from None
    if not isinstance(found, dict):
        raise ObserveError(f"{url} answers JSON that is no object: {_shown(text)}")
    return found


def _shown(text: str) -> str:
    """A beginning on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
