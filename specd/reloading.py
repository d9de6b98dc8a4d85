"""The one path that every reload takes: read, validate, compare, take over, tell."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specd.config.layers import Loaded
from specd.config.reload import Change, ineffective, plan_reload
from specd.config.schema import Config
from specd.errors import ReloadRefusedError, UserError

log = logging.getLogger(__name__)

Trigger = Literal["start", "SIGHUP", "admin", "mqtt"]


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

    def as_json(self) -> dict[str, Any]:
        """For whoever asked for it."""
        changes = [
            {"key": one.key, "old": one.old, "new": one.new, "kind": one.kind.value} for one in self.changes
        ]
        return {"result": "ok", "changes": changes, "notes": self.notes}


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
        self._take_over = take_over
        self._outcome = outcome
        self._clock = clock
        self._lock = asyncio.Lock()
        self.last = Attempt("start", clock())

    async def reload(self, trigger: Trigger) -> Reloaded:
        """Raises `UserError` when the old config is kept, `ReloadRefusedError` if only a restart helps."""
        async with self._lock:
            try:
                new = await asyncio.to_thread(self.loaded.again)
                reloaded = await self._put_in_force(new)
            except UserError as error:
                log.error("reload by %s refused, the running config stays: %s", trigger, error)  # noqa: TRY400
                self._note(Attempt(trigger, self._clock(), str(error)))
                raise
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

    async def _put_in_force(self, new: Loaded) -> Reloaded:
        reloaded = Reloaded(plan_reload(self.loaded.config, new.config), ineffective(self.loaded, new))
        await self._take_over(new.config)
        self.loaded = new
        return reloaded

    def _note(self, attempt: Attempt) -> None:
        self.last = attempt
        self._outcome(attempt)


def _tell(what: str, reloaded: Reloaded) -> None:
    count = len(reloaded.changes)
    log.info("%s: %s changed", what, f"{count} key{'s' if count > 1 else ''}" if count else "nothing")
    for change in reloaded.changes:
        log.info("config: %s", change.text())
    for note in reloaded.notes:
        log.warning("config: %s", note)
