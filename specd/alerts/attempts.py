"""What an answer to a notification means, and how long to wait after a bad one."""

from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from random import Random
from typing import Final

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 300.0
_LONGEST_RETRY_AFTER: Final = 3600.0
_WORTH_REPEATING: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt did not deliver."""

    text: str
    """One clause for people: "it answered 503"."""
    final: bool = False
    """Sending the same again would not help."""
    gone: bool = False
    """The receiver wants no more of anything (410)."""
    retry_after: float = 0.0
    """Seconds that the receiver asked to be left alone for."""
    longest_pause: float = _LONGEST_PAUSE
    """Where another attempt is cheap, it need not wait for longer."""


def judge(status: int, retry_after: str | None, now: float) -> Failure | None:
    """None for 2xx. A redirect is a failure: a signed body goes to the configured address or nowhere."""
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return None
    return Failure(
        f"it answered {status}",
        final=400 <= status < 500 and status not in _WORTH_REPEATING,
        gone=status == HTTPStatus.GONE,
        retry_after=_seconds(retry_after, now),
    )


def pause(attempt: int, failure: Failure, rng: Random) -> float:
    """Seconds to wait after this failed attempt, the first being 1; never less than the receiver asked for.

    Exponential, capped, and with full jitter, so that many senders spread out.
    """
    longest = min(failure.longest_pause, _FIRST_PAUSE * 2.0 ** (attempt - 1))
    return max(failure.retry_after, rng.uniform(0.0, longest))


def _seconds(retry_after: str | None, now: float) -> float:
    """`Retry-After` is a whole number of seconds or an HTTP date; nonsense counts as absent."""
    if retry_after is None:
        return 0.0
    seconds = float(retry_after) if retry_after.strip().isdecimal() else _until(retry_after, now)
    return min(max(seconds, 0.0), _LONGEST_RETRY_AFTER)


def _until(date: str, now: float) -> float:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
