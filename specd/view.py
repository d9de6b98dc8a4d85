"""What the admin listener shows of the running daemon."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from engine.api import Ready
from policies.drift import Stratum
from specd.alerts.alarm import Alarm
from specd.alerts.silences import Silence
from specd.config.reload import redacted_dump
from specd.crashes import Crashes
from specd.errors import UserError
from specd.observe.observing import Observing
from specd.observers import Ledger
from specd.reloading import Reloaded, Reloader, Trigger
from specd.target.healing import Healer
from specd.target.line import Line
from specd.target.outcome import Outcome
from specd.target.updates import TargetUpdates
from specd.telemetry.prometheus import Metrics
from specd.telemetry.requests import RequestWatch


@dataclass(frozen=True, slots=True)
class View:
    """Reads the parts; changes nothing but by `reload`, `set`, and what changes the target."""

    version: str
    started: float
    """On `time.monotonic`."""
    name: str
    line: Callable[[], Line]
    """What serves."""
    updates: TargetUpdates
    healer: Healer
    unready: Callable[[], str | None]
    ledger: Ledger
    metric_source: Metrics
    alarm: Alarm
    request_watch: RequestWatch
    reloader: Reloader
    run_reload: Callable[[Trigger, bool], Awaitable[Reloaded]]
    """By whom, and whether keys that need a restart may wait for it."""
    run_set: Callable[[Trigger, Mapping[str, Any]], Awaitable[Reloaded]]
    mqtt: Callable[[], dict[str, Any]]
    fleet: Callable[[], dict[str, Any] | None]
    """What all nodes at the broker tell of themselves; None without one."""
    crashes: Crashes
    observing: Observing

    def metrics(self) -> bytes:
        """In Prometheus' text format."""
        return self.metric_source.render()

    def config(self) -> dict[str, Any]:
        """The config in force, without secrets."""
        return redacted_dump(self.reloader.loaded)

    def decisions(self, limit: int, request: str | None) -> list[dict[str, Any]]:
        """The last rounds, newest first; of one request where it is named."""
        return list(self.ledger.decisions(limit, request))

    def alerts(self) -> list[dict[str, Any]]:
        """Open alerts and those that ended lately."""
        return self.alarm.manager.snapshot()

    def happened(self) -> list[dict[str, Any]]:
        """What happened lately that may be why numbers changed, oldest first."""
        return [
            {"kind": event.kind, "text": event.text, "unix_time": event.at}
            for event in self.alarm.manager.events.all()
        ]

    async def reload(self, trigger: Trigger = "admin", *, partial: bool = False) -> Reloaded:
        """Read the config again; partial: keys that need a restart wait for it. Raises `UserError`."""
        return await self.run_reload(trigger, partial)

    async def set(self, values: Mapping[str, Any], trigger: Trigger = "admin") -> Reloaded:
        """Set keys until the next reload, by dotted name. Raises `UserError`."""
        return await self.run_set(trigger, values)

    async def silence(self, silence: Silence) -> None:
        """Tell nobody of some alerts for a time. Raises `UserError`."""
        await self.alarm.silence(silence)

    async def accept_drift(self, wanted: Callable[[Stratum], bool]) -> list[Stratum]:
        """What acceptance is now is meant to be so. Raises `UserError` where it is what it was."""
        found = await self.request_watch.accept(wanted)
        if not found:
            raise UserError(
                "acceptance has not left its baseline there: `specd status --json` lists what is watched"
            )
        return found

    def target(self) -> dict[str, Any]:
        """What serves, what a rollback would serve, and how the last change went."""
        return {**self.updates.snapshot(), "healing": self.healer.snapshot()}

    async def update_target(self, path: str, revision: str | None) -> Outcome:
        """Serve another target. Raises `UpdateError` or `UpdateBusyError`."""
        return await self.updates.update(path, revision)

    async def refresh_target(self, weights: str, revision: str | None) -> Outcome:
        """Serve this target with other weights. Raises likewise."""
        return await self.updates.refresh(weights, revision)

    async def use_head(self, head: str, revision: str | None) -> Outcome:
        """Draft with another head. Raises likewise."""
        return await self.updates.use_head(head, revision)

    async def roll_back(self) -> Outcome:
        """Serve the previous target. Raises likewise."""
        return await self.updates.rollback()

    async def run_canary(self) -> Outcome:
        """Replay the canary beside the traffic. Raises likewise."""
        return await self.updates.check()

    def status(self) -> dict[str, Any]:
        """How everything stands."""
        why_not = self.unready()
        return {
            "version": self.version,
            "uptime_seconds": round(time.monotonic() - self.started, 3),
            "ready": why_not is None,
            "unready_because": why_not,
            "engine": self._engine(),
            "model": self._model(),
            "load": self._load(),
            "kv": None if self.ledger.kv is None else structs.asdict(self.ledger.kv),
            "acceptance": self.ledger.acceptance(),
            "step_cost_error": self.ledger.cost_errors(),
            "drafts": self._drafts(),
            "drift": self.request_watch.snapshot(),
            "observed": self.observing.overview(),
            "alerts": self.alarm.manager.counts(),
            "mqtt": self.mqtt(),
            "config": self._config(),
        }

    def _engine(self) -> dict[str, Any]:
        supervisor = self.line().supervisor
        death = supervisor.last_death
        return {
            "state": supervisor.state.value,
            "pid": supervisor.pid,
            "restarts": supervisor.restarts,
            "last_death": None if death is None else f"{death.reason}: {death.text}",
            "last_crash": self.crashes.last,
            "info": None if supervisor.info is None else _plain(supervisor.info),
        }

    def _model(self) -> dict[str, Any]:
        model, draft = self.line().known, self.reloader.loaded.config.model.draft
        return {
            "name": self.name,
            "target_revision": None if model is None else model.info.revision,
            "draft_revision": None if model is None else model.drafts.revision(draft),
            "quantization": None if model is None else model.info.quantization,
            "source": None if model is None else model.info.source,
        }

    def _load(self) -> dict[str, Any]:
        return {
            "state": self.ledger.load_state.name.lower(),
            "running": self.ledger.running,
            "waiting": self.ledger.waiting,
            "admitted": len(self.line().supervisor.flights),
        }

    def _drafts(self) -> dict[str, Any]:
        ledger = self.ledger
        return {
            "tokens_per_second": ledger.tokens_per_second(),
            "acceptance": ledger.acceptance_by_proposer(),
            "k": ledger.lengths(),
            "k_by_class": ledger.lengths_by_class(),
            "reasons": ledger.reasons(),
            "goodput": ledger.goodput.snapshot(),
        }

    def _config(self) -> dict[str, Any]:
        last = self.reloader.last
        return {
            "hash": self.reloader.loaded.digest,
            "pending_restart": [change.key for change in self.reloader.pending],
            "last_reload": {
                "trigger": last.trigger,
                "unix_time": last.unix_time,
                "result": "ok" if last.error is None else "refused",
                "error": last.error,
            },
        }


def _plain(info: Ready) -> dict[str, Any]:
    """What an engine said of itself."""
    room = None if info.room is None else structs.asdict(info.room)
    return {**structs.asdict(info), "room": room}
