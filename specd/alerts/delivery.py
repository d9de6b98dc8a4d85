"""From a changed alert to a receiver that has said 2xx. This version keeps what is pending in memory.

lane      the notifications of one alert to one receiver; sent one after the other, in order
attempt   one POST of a notification
outcome   delivered, rejected (final: sending it again would not help), gave_up (attempts or time used up);
          each attempt that will be repeated counts as retried
"""

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Final, Protocol

import httpx2

from specd.alerts.attempts import Failure, judge, pause
from specd.alerts.lifecycle import Alert, State
from specd.alerts.receivers import webhook
from specd.config.schema import ReceiverSection
from specd.errors import UserError
from specd.telemetry.prometheus import DeliveryOutcome, Metrics

log: Final = logging.getLogger(__name__)

# The client logs every URL at INFO, and a receiver's URL may well be its only secret.
logging.getLogger("httpx2").setLevel(logging.WARNING)


_GONE: Final = Failure("it answered 410 before: it is left alone until the next reload", final=True)


class Outbox(Protocol):
    """What takes over alerts that changed state and answers for their delivery."""

    def put(self, alert: Alert) -> None:
        """Tell every receiver of this firing or resolved alert, in the order of the calls for a fingerprint.

        Returns at once.
        """

    def configure(self, receivers: Sequence[ReceiverSection]) -> None:
        """Use these receivers from the next attempt on, for what is pending too.

        Raises `UserError` and changes nothing when one of them cannot be used.
        """

    async def aclose(self, grace: float) -> None:
        """Try to deliver what is pending for at most `grace` seconds, then end."""


@dataclass(frozen=True, slots=True)
class _Notification:
    id: str
    body: bytes
    subject: str
    """For the log: "SpecdAcceptanceCollapse firing"."""


@dataclass(frozen=True, slots=True)
class _Lane:
    pending: deque[_Notification]
    """The first one is being delivered."""
    task: asyncio.Task[None]


@dataclass(slots=True)
class _Receiver:
    section: ReceiverSection
    keys: tuple[bytes, ...]
    gone: bool = False
    lanes: dict[str, _Lane] = field(default_factory=dict)  # by fingerprint


class Deliveries:
    """The outbox in memory: a task per lane while it has something to send."""

    def __init__(
        self,
        receivers: Sequence[ReceiverSection],
        metrics: Metrics,
        *,
        client: httpx2.AsyncClient | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        rng: Random | None = None,
    ) -> None:
        """Raises `UserError` when a receiver cannot be used."""
        self._metrics = metrics
        self._client = client or httpx2.AsyncClient(follow_redirects=False, timeout=None)
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or Random()  # noqa: S311
        self._closing = asyncio.Event()
        self._receivers: dict[str, _Receiver] = {}
        self.configure(receivers)

    def configure(self, receivers: Sequence[ReceiverSection]) -> None:
        """See `Outbox`. A receiver that had answered 410 is tried again."""
        keys = {section.name: signing_keys(section) for section in receivers}
        for name in self._receivers.keys() - keys.keys():
            self._drop(self._receivers.pop(name), "the receiver was taken out of the config")
        for section in receivers:
            receiver = self._receivers.setdefault(section.name, _Receiver(section, ()))
            receiver.section, receiver.keys, receiver.gone = section, keys[section.name], False
        self._metrics.declare_receivers(keys)

    def put(self, alert: Alert) -> None:
        """See `Outbox`. Needs a running event loop."""
        for receiver in self._receivers.values():
            if alert.state is State.FIRING or receiver.section.send_resolved:
                self._enqueue(receiver, alert)

    async def aclose(self, grace: float) -> None:
        """See `Outbox`. What waits for its next attempt gets it now, and no other."""
        self._closing.set()
        tasks = [lane.task for receiver in self._receivers.values() for lane in receiver.lanes.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
        for receiver in self._receivers.values():
            self._drop(receiver, "specd is ending")
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.aclose()

    def _enqueue(self, receiver: _Receiver, alert: Alert) -> None:
        content = webhook.body(receiver.section.name, alert)
        notification = _Notification(f"msg_{uuid.uuid4().hex}", content, f"{alert.name} {alert.state}")
        lane = receiver.lanes.get(alert.fingerprint)
        if lane is None:
            pending = deque([notification])
            task = asyncio.create_task(self._work(receiver, alert.fingerprint, pending))
            receiver.lanes[alert.fingerprint] = _Lane(pending, task)
        else:
            lane.pending.append(notification)

    async def _work(self, receiver: _Receiver, fingerprint: str, pending: deque[_Notification]) -> None:
        while pending:
            await self._deliver(receiver, pending[0])
            pending.popleft()
        del receiver.lanes[fingerprint]

    async def _deliver(self, receiver: _Receiver, notification: _Notification) -> None:
        """Attempt until there is an outcome other than retried."""
        for attempt in count(1):
            failure = await self._attempt(receiver, notification)
            outcome = self._outcome(receiver, attempt, failure)
            self._metrics.webhook_outcome(receiver.section.name, outcome)
            _report(receiver.section.name, notification, attempt, outcome, failure)
            if failure is None or outcome != "retried":
                return
            await self._pause(pause(attempt, failure, self._rng))

    def _outcome(self, receiver: _Receiver, attempt: int, failure: Failure | None) -> DeliveryOutcome:
        if failure is None:
            return "delivered"
        if failure.final:
            return "rejected"
        last = attempt >= receiver.section.max_attempts or self._closing.is_set()
        return "gave_up" if last else "retried"

    async def _attempt(self, receiver: _Receiver, notification: _Notification) -> Failure | None:
        if receiver.gone:
            return _GONE
        limit = receiver.section.timeout_seconds
        try:
            async with asyncio.timeout(limit):
                failure = await self._post(receiver, notification)
        except TimeoutError:
            return Failure(f"it did not answer within {limit:g} s")
        except httpx2.HTTPError as error:
            return Failure(f"{type(error).__name__}: {error}")
        except Exception as error:
            # A fault of ours, but the lane must live: what is behind in it would be lost without a word.
            log.exception("receiver %s could not be tried", receiver.section.name)
            return Failure(f"{type(error).__name__}")
        receiver.gone = failure is not None and failure.gone
        return failure

    async def _post(self, receiver: _Receiver, notification: _Notification) -> Failure | None:
        now = self._clock()
        headers = webhook.headers(notification.id, now, notification.body, receiver.keys)
        # Streamed, so that the body of the answer, which may be endless, is never read.
        async with self._client.stream(
            "POST", receiver.section.url, content=notification.body, headers=headers
        ) as answer:
            return judge(answer.status_code, answer.headers.get("retry-after"), now)

    async def _pause(self, seconds: float) -> None:
        """Wait so long, or until closing."""
        waits = [asyncio.ensure_future(self._sleep(seconds)), asyncio.ensure_future(self._closing.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _drop(self, receiver: _Receiver, why: str) -> None:
        """Stop the receiver's lanes; what was pending is lost."""
        for lane in receiver.lanes.values():
            lane.task.cancel()
            for notification in lane.pending:
                self._metrics.webhook_outcome(receiver.section.name, "gave_up")
                log.error(
                    "receiver %s was not told of %s: %s", receiver.section.name, notification.subject, why
                )
        receiver.lanes.clear()


def signing_keys(section: ReceiverSection) -> tuple[bytes, ...]:
    """The keys of the receiver's secret file. Raises `UserError` when the receiver cannot be used."""
    try:
        httpx2.URL(section.url)
        return webhook.read_keys(section.secret_file)
    except httpx2.InvalidURL as error:
        raise UserError(f"receiver {section.name}: its url is not one: {error}") from None
    except webhook.SecretError as error:
        raise UserError(f"receiver {section.name}: {error}") from None


def _report(
    receiver: str,
    notification: _Notification,
    attempt: int,
    outcome: DeliveryOutcome,
    failure: Failure | None,
) -> None:
    text = "" if failure is None else f": {failure.text}"
    level = {"delivered": logging.INFO, "retried": logging.WARNING}.get(outcome, logging.ERROR)
    log.log(
        level, "receiver %s, %s, attempt %d: %s%s", receiver, notification.subject, attempt, outcome, text
    )
