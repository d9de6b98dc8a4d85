"""Refusals as OpenAI's clients read them: `{"error": {"message", "type", "param", "code"}}`."""

from collections.abc import Mapping
from typing import Any, Final

from specd.flights import Refusal

_STATUS: Final[Mapping[str, int]] = {
    "queue_full": 429,
    "rate_limit_exceeded": 429,
    "request_refused": 400,
    "engine_error": 500,
    "deadline_exceeded": 504,
    "slow_reader": 408,
    "request_timeout": 408,
}
_UNAVAILABLE: Final = 503
_IN_VAIN: Final = frozenset({"deadline_exceeded", "request_timeout", "no_engine"})


class ApiError(Exception):
    """An answer other than 200."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The envelope; a mid-stream error event has the same."""
        error = {
            "message": self.message,
            "type": _type(self.status),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}


def _type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def from_refusal(refusal: Refusal) -> ApiError:
    """What a request that got no answer is told over HTTP. A 503 or 429 may be sent again."""
    headers = {} if refusal.retry_after is None else {"Retry-After": str(refusal.retry_after)}
    if refusal.code in _IN_VAIN:
        headers["X-Should-Retry"] = "false"  # OpenAI's clients would send it again by themselves
    status = _STATUS.get(refusal.code, _UNAVAILABLE)
    return ApiError(status, refusal.message, code=refusal.code, headers=headers)
