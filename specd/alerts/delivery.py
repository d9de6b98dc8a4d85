"""From a changed alert to a receiver that has said 2xx.

notice    a receiver is to be told of an alert
message   what is sent to a receiver at once: notices of one group. It stays in the outbox until there is an outcome
attempt   one try to send a message
outcome   delivered, rejected (final: sending it again would not help), gave_up (attempts used up, or the receiver is
          gone from the config), dropped (the outbox was full); each attempt that will be repeated counts as retried
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, Protocol

from specd.alerts.attempts import Failure, pause
from specd.alerts.durable import DurableStore
from specd.alerts.events import Event
from specd.alerts.receivers.base import Publisher, Target
from specd.alerts.receivers.kinds import KINDS, usable
from specd.alerts.sending import Sender
from specd.alerts.store import Changes, Content, Entry, Message
from specd.alerts.telling import Listener, Notice
from specd.config.alerts import ReceiverSection
from specd.telemetry.alarm import AlarmMetrics, DeliveryOutcome

log: Final = logging.getLogger(__name__)

_GONE: Final = Failure("it answered 410 before: it is left alone until the next reload", final=True)
_AT_ONCE: Final = 4
_LEASE_MARGIN: Final = 30.0
_LOOK_AGAIN: Final = 30.0
_JUMP: Final = 2.0


class Outbox(Protocol):
    """What takes over changes of alerts and answers for the delivery of what follows from them."""

    def listeners(self) -> Sequence[Listener]:
        """The receivers."""

    def put(self, changes: Changes, notices: Sequence[Notice]) -> Awaitable[None]:
        """Write the changes, and tell of the notices, in the order of the calls. Done when it is on the disk."""

    def configure(self, receivers: Sequence[ReceiverSection]) -> None:
        """Use these receivers from the next attempt on, for what is pending too.

        Raises `UserError` and changes nothing when one of them cannot be used.
        """


@dataclass(slots=True)
class _Receiver:
    target: Target
    gone: bool = False
    busy: int = 0
    error: str = ""
    """Why the last attempt failed; empty where it did not."""


class Deliveries:
    """The outbox, and a task per message that is on its way."""

    def __init__(
        self,
        receivers: Sequence[ReceiverSection],
        metrics: AlarmMetrics,
        store: DurableStore,
        *,
        clock: Callable[[], float] = time.time,
        pauses: Callable[[int, Failure, Random], float] = pause,
    ) -> None:
        """Raises `UserError` when a receiver cannot be used."""
        self._metrics = metrics
        self._store = store
        self._clock = clock
        self._pauses = pauses
        self._rng = Random()  # noqa: S311
        self._sender = Sender(clock)
        self._followed: dict[str, dict[str, str]] = {}
        self._receivers: dict[str, _Receiver] = {}
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._work: asyncio.Task[None] | None = None
        self._offset = clock() - time.monotonic()
        self._configure(receivers)

    def listeners(self) -> Sequence[Listener]:
        """See `Outbox`."""
        sections = [one.target.section for one in self._receivers.values()]
        return [Listener(one.name, one.repeats_after, one.send_resolved) for one in sections]

    def publish_by(self, publisher: Publisher) -> None:
        """The way to the broker, for receivers of kind mqtt."""
        self._sender.publisher = publisher

    def configure(self, receivers: Sequence[ReceiverSection]) -> None:
        """See `Outbox`. A receiver that had answered 410 is tried again."""
        self._configure(receivers)
        self._serve()

    def put(self, changes: Changes, notices: Sequence[Notice]) -> Awaitable[None]:
        """See `Outbox`. Target updates are told to those that take them."""
        entries = tuple(self._entry(notice) for notice in notices if notice.receiver in self._receivers)
        told = tuple(entry for event in changes.events for entry in self._event_entries(event))
        full = replace(changes, entries=(*entries, *told))
        return self._spawn(self._written(self._store.submit(lambda store: store.commit(full))))

    def start(self) -> None:
        """Begin to send, until `aclose`."""
        self._serve()
        self._work = asyncio.create_task(self._run())

    async def aclose(self, grace: float) -> None:
        """Stop, and give what is on its way `grace` seconds to arrive. The rest waits for the next start."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._store.recover()
        waiting = sum((await self._store.run(lambda store: store.pending())).values())
        if waiting and not self._store.durable:
            log.error("%d notifications are lost: specd ends, and they are in memory only", waiting)
        self._store.close()
        await self._sender.aclose()

    @contextmanager
    def followed(self, fingerprint: str) -> Iterator[Mapping[str, str]]:
        """How the latest attempt to tell of this alert ended, by receiver, for as long as the context lasts."""
        self._followed[fingerprint] = {}
        try:
            yield self._followed[fingerprint]
        finally:
            del self._followed[fingerprint]

    def health(self) -> list[dict[str, object]]:
        """Each receiver, for people."""
        return [
            {
                "name": name,
                "kind": one.target.section.kind,
                "failing": self._metrics.failing(name),
                "error": one.error,
                "pending": self._metrics.pending(name),
                "last_success": self._metrics.succeeded(name),
            }
            for name, one in self._receivers.items()
        ]

    def _configure(self, receivers: Sequence[ReceiverSection]) -> None:
        targets = {section.name: usable(section) for section in receivers}
        for name in self._receivers.keys() - targets.keys():
            del self._receivers[name]
        for name, target in targets.items():
            receiver = self._receivers.setdefault(name, _Receiver(target))
            receiver.target, receiver.gone = target, False
        self._metrics.declare_receivers(targets)

    def _serve(self) -> None:
        """What waits for receivers that are no more is not sent; groups that are made otherwise keep their order."""
        receivers = {name: _grouping(one.target.section) for name, one in self._receivers.items()}
        self._spawn(self._served(self._store.submit(lambda store: store.serve(receivers))))

    async def _served(self, served: asyncio.Future[dict[str, int]]) -> None:
        for name, messages in (await served).items():
            self._metrics.outcome(name, "gave_up", self._clock(), messages)
            log.error(
                "receiver %s was taken out of the config: it is not told of %d messages", name, messages
            )
        self._news.set()

    async def _written(self, written: asyncio.Future[dict[str, int]]) -> None:
        for name, messages in (await written).items():
            self._metrics.outcome(name, "dropped", self._clock(), messages)
            log.error("the outbox is full: receiver %s will not be told of %d messages", name, messages)
        await self._count()
        self._news.set()

    def _entry(self, notice: Notice) -> Entry:
        section = self._receivers[notice.receiver].target.section
        alone = KINDS[section.kind].alone or not section.group_by
        labels = notice.alert.labels
        lane = notice.alert.fingerprint
        if not alone:
            lane = "|".join(f"{name}={labels.get(name, '')}" for name in section.group_by)
        due = self._clock() + (0.0 if alone else section.group_wait_seconds)
        content = Content((notice.alert,))
        return Entry(notice.receiver, lane, _grouping(section), due, content, again=notice.again)

    def _event_entries(self, event: Event) -> Iterable[Entry]:
        if event.kind != "target_update":
            return
        for name, one in self._receivers.items():
            if KINDS[one.target.section.kind].takes_events:
                grouping = _grouping(one.target.section)
                yield Entry(name, "events", grouping, self._clock(), Content(event=event))

    async def _run(self) -> None:
        """Send what is due, and look again when something is, or when there is news."""
        while True:
            self._news.clear()
            try:
                wait = await self._send_due()
            except Exception:
                # Whatever is wrong, an outbox that has died without a word is worse.
                log.exception("the outbox could not be looked at")
                wait = _LOOK_AGAIN
            await self._until_news(wait)

    async def _send_due(self) -> float:
        """Seconds until there is more."""
        await self._after_a_jump()
        await self._store.recover()
        for message in await self._take():
            receiver = self._receivers.get(message.receiver)
            if (
                receiver is not None
            ):  # else it was taken out of the config meanwhile, and its messages with it
                receiver.busy += 1
                self._spawn(self._deliver(receiver, message))
        await self._count()
        return await self._wait()

    async def _wait(self) -> float:
        """Seconds until something is due of a receiver that can take it; when one can again, that is news."""
        due = await self._store.run(lambda store: store.due())
        able = [at for name, at in due.items() if self._free().get(name)]
        return min(max(min(able, default=float("inf")) - self._clock(), 0.0), _LOOK_AGAIN)

    async def _take(self) -> list[Message]:
        free = self._free()
        longest = max((one.target.section.timeout_seconds for one in self._receivers.values()), default=0.0)
        now = self._clock()
        return await self._store.run(lambda store: store.take(free, now, longest + _LEASE_MARGIN))

    def _free(self) -> dict[str, int]:
        """How many more messages may be on their way to each receiver; those that are full are left out."""
        free = {name: _AT_ONCE - one.busy for name, one in self._receivers.items()}
        return {name: count for name, count in free.items() if count > 0}

    async def _until_news(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _after_a_jump(self) -> None:
        """Pauses are kept in Unix time, to outlive a restart: when the clock is set, they are set with it."""
        jump = self._clock() - time.monotonic() - self._offset
        if abs(jump) > _JUMP:
            log.warning(
                "the clock was set by %+.1f s: pauses before the next attempts stay as they were", jump
            )
            self._offset += jump
            await self._store.run(lambda store: store.shift(jump))

    async def _deliver(self, receiver: _Receiver, message: Message) -> None:
        try:
            failure = await self._attempt(receiver, message)
            outcome = _outcome(receiver.target.section, message.attempt, failure)
            receiver.error = "" if failure is None else failure.text
            self._metrics.outcome(message.receiver, outcome, self._clock())
            self._note(message, outcome, failure)
            if failure is not None and outcome == "retried":
                due = self._clock() + self._pauses(message.attempt, failure, self._rng)
                await self._store.run(lambda store: store.retry(message, due))
            else:
                await self._store.run(lambda store: store.remove(message))
        finally:
            receiver.busy -= 1
            self._news.set()

    def _note(self, message: Message, outcome: DeliveryOutcome, failure: Failure | None) -> None:
        _report(message, outcome, failure)
        for alert in message.content.alerts:
            if alert.fingerprint in self._followed:
                self._followed[alert.fingerprint][message.receiver] = outcome

    async def _attempt(self, receiver: _Receiver, message: Message) -> Failure | None:
        if receiver.gone:
            return _GONE
        failure = await self._sender.attempt(receiver.target, message)
        receiver.gone = failure is not None and failure.gone
        return failure

    async def _count(self) -> None:
        pending = await self._store.run(lambda store: store.pending())
        self._metrics.set_outbox(pending, durable=self._store.durable)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("the outbox failed", exc_info=task.exception())


def _outcome(section: ReceiverSection, attempt: int, failure: Failure | None) -> DeliveryOutcome:
    if failure is None:
        return "delivered"
    if failure.final:
        return "rejected"
    return "gave_up" if 0 < section.max_attempts <= attempt else "retried"


def _grouping(section: ReceiverSection) -> str:
    """By what its messages are grouped, as one word to compare."""
    return "" if KINDS[section.kind].alone else "|".join(section.group_by)


def _report(message: Message, outcome: DeliveryOutcome, failure: Failure | None) -> None:
    text = "" if failure is None else f": {failure.text}"
    level = {"delivered": logging.INFO, "retried": logging.WARNING}.get(outcome, logging.ERROR)
    log.log(
        level,
        "receiver %s, %s, attempt %d: %s%s",
        message.receiver,
        subject(message),
        message.attempt,
        outcome,
        text,
    )


def subject(message: Message) -> str:
    """For the log: "SpecdAcceptanceCollapse firing"; of several, how often each."""
    if message.content.event is not None:
        return message.content.event.kind
    said = Counter(f"{alert.name} {alert.state}" for alert in message.content.alerts)
    return ", ".join(f"{count} x {text}" if count > 1 else text for text, count in said.items())
