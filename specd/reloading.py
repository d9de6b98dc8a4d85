"""The one path that every reload takes: read, validate, compare, take over, tell."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from specd.config.layers import Loaded, fingerprint
from specd.config.reload import Change, ineffective, plan_reload, without_restarts
from specd.config.schema import Config
from specd.errors import ReloadRefusedError, UserError
from specd.notify import Notifier
from specd.threads import in_thread

log = logging.getLogger(__name__)

Trigger = Literal["start", "SIGHUP", "admin", "mqtt", "watch"]

_LOOK_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """A load of the config that was tried."""

    trigger: Trigger
    unix_time: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a good reload did."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    """Sentences about what was changed in vain."""
    pending: tuple[Change, ...] = ()
    """What the files say and only a restart puts in force; of a partial reload."""

    def as_json(self) -> dict[str, Any]:
        """For whoever asked for it."""
        return {
            "result": "ok",
            "changes": [_as_json(one) for one in self.changes],
            "pending": [_as_json(one) for one in self.pending],
            "notes": self.notes,
        }


def _as_json(change: Change) -> dict[str, Any]:
    return {"key": change.key, "old": change.old, "new": change.new, "kind": change.kind.value}


class Reloader:
    """Owner of the config in force; one reload at a time."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        take_over: Callable[[Config], Awaitable[None]],
        outcome: Callable[[Attempt], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`take_over` puts a valid config into force, or raises `UserError` and changes nothing."""
        self.loaded = loaded
        self.pending: tuple[Change, ...] = ()
        """What waits for a restart since a partial reload."""
        self.seen = loaded.seen
        """`fingerprint` of the files as the last reload found them, taken over or not."""
        self._take_over = take_over
        self._outcome = outcome
        self._clock = clock
        self._lock = asyncio.Lock()
        self.last = Attempt("start", clock())

    @property
    def config(self) -> Config:
        """The one in force."""
        return self.loaded.config

    async def reload(self, trigger: Trigger, *, partial: bool = False) -> Reloaded:
        """Raises `UserError` when the old config is kept, `ReloadRefusedError` if only a restart helps. partial: keys
        that need one wait for it, and the others are taken over.
        """
        async with self._lock:
            try:
                reloaded = await self._read_anew(partial=partial)
            except UserError as error:
                log.error("reload by %s refused, the running config stays: %s", trigger, error)  # noqa: TRY400
                self._note(Attempt(trigger, self._clock(), str(error)))
                raise
            self.pending = reloaded.pending
            self._note(Attempt(trigger, self._clock()))
            _tell(f"reload by {trigger}", reloaded)
            return reloaded

    async def set(self, trigger: Trigger, values: Mapping[str, Any]) -> Reloaded:
        """Put values on top of the config in force, by dotted key, until the next reload. Raises as `reload` does."""
        async with self._lock:
            new = await asyncio.to_thread(self.loaded.with_values, values)
            try:
                reloaded = await self._put_in_force(new)
            except ReloadRefusedError as refused:
                raise ReloadRefusedError(refused.keys, "write it into the config and restart specd") from None
            _tell(f"set by {trigger}", reloaded)
            return reloaded

    async def _read_anew(self, *, partial: bool) -> Reloaded:
        self.seen = await asyncio.to_thread(fingerprint, self.loaded.sources)
        new = await asyncio.to_thread(self.loaded.again)
        if not partial:
            return await self._put_in_force(new)
        possible, pending = await asyncio.to_thread(without_restarts, self.loaded, new)
        return await self._put_in_force(possible, pending)

    async def _put_in_force(self, new: Loaded, pending: tuple[Change, ...] = ()) -> Reloaded:
        changes = plan_reload(self.config, new.config)
        notes = ineffective(self.loaded, new)
        await self._take_over(new.config)
        self.loaded = new
        return Reloaded(changes, notes, pending)

    def _note(self, attempt: Attempt) -> None:
        self.last = attempt
        self._outcome(attempt)


class Reloads:
    """Reloads as whoever asks for one has them: told to the service manager, and to who looks for causes later."""

    def __init__(
        self, reloader: Reloader, notifier: Notifier, reconfigured: Callable[[Reloaded], None]
    ) -> None:
        """reconfigured: told of each that was good."""
        self._reloader = reloader
        self._notifier = notifier
        self._reconfigured = reconfigured

    async def reload(self, trigger: Trigger, partial: bool = False) -> Reloaded:
        """As the reloader does."""
        with self._notifier.reload():
            reloaded = await self._reloader.reload(trigger, partial=partial)
            self._reconfigured(reloaded)
            return reloaded

    async def set(self, trigger: Trigger, values: Mapping[str, Any]) -> Reloaded:
        """As the reloader does."""
        reloaded = await self._reloader.set(trigger, values)
        self._reconfigured(reloaded)
        return reloaded

    async def by_signal(self) -> None:
        """A signal has no answer: what is wrong is in the log, the metrics and an alert."""
        with contextlib.suppress(UserError):
            await self.reload("SIGHUP")


async def watch(
    reloader: Reloader, reload: Callable[[Trigger], Awaitable[object]], *, seconds: float = _LOOK_SECONDS
) -> None:
    """Reload when the files are other than the last reload found them, whoever asked for that one, for as long as it
    runs. seconds: from one look to the next, for which files must have been left alone.

    Contents are compared, so that it does not matter how a file was replaced. One that is refused is not tried again
    as it is.
    """
    before = reloader.seen
    while True:
        await asyncio.sleep(seconds)
        if not reloader.loaded.config.reload.watch:
            continue
        now = await in_thread(fingerprint, reloader.loaded.sources)
        settled, before = now == before, now
        if settled and now != reloader.seen:
            with contextlib.suppress(UserError):  # it is in the log, the metrics and an alert
                await reload("watch")


def _tell(what: str, reloaded: Reloaded) -> None:
    count = len(reloaded.changes)
    log.info("%s: %s changed", what, f"{count} key{'s' if count > 1 else ''}" if count else "nothing")
    for change in reloaded.changes:
        log.info("config: %s", change.text())
    for change in reloaded.pending:
        log.warning("config: %s waits for a restart", change.text())
    for note in reloaded.notes:
        log.warning("config: %s", note)
