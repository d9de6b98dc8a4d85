"""What tenants and keys may take of the server: requests at a time, requests and tokens a minute.

Of the daemon as a whole, whichever target serves. Requests are counted as they are let in, tokens as requests end:
what they will be is not known before. So a tenant may run into debt by what it had open, and waits until that is made
up for.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from specd.admission.bucket import Bucket
from specd.config.limits import LimitSection
from specd.flights import Refusal, UnservedError, retry_after

EVERY_OTHER: Final = "*"
_RECENT: Final = 8
_MANY: Final = 4096


@dataclass(slots=True)
class _Account:
    """Of one tenant or key."""

    open: deque[float] = field(default_factory=deque)
    """When they came; one leaves for another when it ends, so the first need not be the oldest."""
    ended: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    requests: Bucket = field(default_factory=Bucket)
    tokens: Bucket = field(default_factory=Bucket)

    def is_new(self, limit: LimitSection, now: float) -> bool:
        """Whether nothing would be lost by forgetting it."""
        rates = ((self.requests, limit.requests_per_minute), (self.tokens, limit.tokens_per_minute))
        return not self.open and all(rate is None or bucket.is_full(rate, now) for bucket, rate in rates)


class _Applied(NamedTuple):
    """A limit, and whom it is applied to."""

    limit: LimitSection
    who: str
    account: _Account


class Ticket:
    """Of one request that was let in."""

    def __init__(self, applied: Sequence[_Applied], clock: Callable[[], float]) -> None:
        self._applied = applied
        self._clock = clock
        self.tokens = 0
        """Of prompt and texts so far."""

    def admitted(self) -> None:
        """It has got a place, and so it is one of the requests of this minute."""
        for limit, _, account in self._applied:
            if limit.requests_per_minute is not None:
                account.requests.take(1, limit.requests_per_minute, self._clock())

    def settle(self) -> None:
        """It is over."""
        now = self._clock()
        for limit, _, account in self._applied:
            account.open.popleft()
            account.ended.append(now)
            if limit.tokens_per_minute is not None:
                account.tokens.take(self.tokens, limit.tokens_per_minute, now)


class Turnstile:
    """Lets requests in, one by one."""

    def __init__(self, limits: Callable[[], Sequence[LimitSection]], clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._accounts: dict[tuple[str, str], tuple[LimitSection, _Account]] = {}

    @contextmanager
    def enter(self, tenant: str, key: str | None) -> Iterator[Ticket]:
        """For as long as a request is here. Raises `UnservedError` where one more is too many."""
        now = self._clock()
        applied = list(self._applied(tenant, key))
        refusals = [refusal for one in applied if (refusal := _refusal(one, now)) is not None]
        if refusals:
            raise UnservedError(max(refusals, key=lambda refusal: refusal.retry_after or 0))
        ticket = Ticket(applied, self._clock)
        for one in applied:
            one.account.open.append(now)
        try:
            yield ticket
        finally:
            ticket.settle()

    def _applied(self, tenant: str, key: str | None) -> Iterator[_Applied]:
        tenants = {limit.tenant: limit for limit in self._limits() if limit.tenant is not None}
        keys = {limit.key: limit for limit in self._limits() if limit.key is not None}
        if (limit := tenants.get(tenant, tenants.get(EVERY_OTHER))) is not None:
            yield _Applied(limit, f"tenant {tenant!r}", self._account("tenant", tenant, limit))
        if key is not None and (limit := keys.get(key)) is not None:
            yield _Applied(limit, f"key {key!r}", self._account("key", key, limit))

    def _account(self, kind: str, name: str, limit: LimitSection) -> _Account:
        if len(self._accounts) >= _MANY:
            self._tidy()
        _, account = self._accounts.get((kind, name), (limit, _Account()))
        self._accounts[kind, name] = (limit, account)
        return account

    def _tidy(self) -> None:
        now = self._clock()
        self._accounts = {
            name: (limit, account)
            for name, (limit, account) in self._accounts.items()
            if not account.is_new(limit, now)
        }


def _whole(seconds: float) -> int:
    """At least so many; what is only rounding of floats is none."""
    return math.ceil(seconds - 1e-6)


def weight_of(tenant: str, limits: Sequence[LimitSection]) -> float:
    """A tenant's share of the engine."""
    weights = {limit.tenant: limit.weight for limit in limits}
    return weights.get(tenant, weights.get(EVERY_OTHER, 1.0))


def _refusal(applied: _Applied, now: float) -> Refusal | None:
    """The one that takes longest, if any holds."""
    limit, who, account = applied
    found = []
    if limit.requests is not None and len(account.open) >= limit.requests:
        text = f"{who} has {len(account.open)} requests running or waiting, and may have {limit.requests}"
        found.append((retry_after(account.ended, account.open[0], now), text))
    if limit.requests_per_minute is not None:
        wait = account.requests.seconds_until(1, limit.requests_per_minute, now)
        found.append((_whole(wait), f"{who} may send {limit.requests_per_minute:g} requests a minute"))
    if limit.tokens_per_minute is not None:
        wait = account.tokens.seconds_until(0, limit.tokens_per_minute, now)
        found.append((_whole(wait), f"{who} may have {limit.tokens_per_minute:g} tokens a minute"))
    seconds, text = max(found, default=(0, ""))
    if seconds <= 0:
        return None
    return Refusal(f"{text}: come back in {seconds} s", "rate_limit_exceeded", retry_after=seconds)
