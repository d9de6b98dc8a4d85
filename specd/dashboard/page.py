"""The files of the dashboard: one page, its style and its scripts, all from this daemon and nobody else."""

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_FILES: Final = Path(__file__).with_name("files")
_PAGE: Final = "index.html"

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""Nothing inline, nothing from elsewhere, and no text that becomes markup: labels and reasons are clients' words."""

_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def routes() -> list[Route]:
    """`GET /` and what the page asks for. Without a key: the files say nothing of the daemon."""
    found = [Route(f"/dashboard/{file.name}", _served(file)) for file in sorted(_FILES.iterdir())]
    return [Route("/", _served(_FILES / _PAGE)), *found]


def _served(file: Path) -> Callable[[Request], Awaitable[Response]]:
    body = file.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    headers = {**_HEADERS, "Content-Type": _TYPES[file.suffix], "ETag": tag}

    async def endpoint(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers)

    return endpoint
