"""All that looks at what the daemon does: counts, the alarm, what is kept of requests, prompts, spans and deaths."""

import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Final

from specd.alerts.alarm import Alarm
from specd.alerts.receivers.base import Publisher
from specd.config.schema import Config
from specd.crashes import Crashes, CrashWitness
from specd.life import Life
from specd.observe.observing import Observing
from specd.observers import Ledger, Telemetry
from specd.reloading import Attempt, Reloaded
from specd.restarts import DEATH_REASONS
from specd.store import store_dir
from specd.supervisor import Observer
from specd.target.line import Line
from specd.target.lines import Aftermath
from specd.telemetry.prometheus import Metrics
from specd.telemetry.prompts import PromptRecorder
from specd.telemetry.requests import RequestWatch
from specd.telemetry.tracing import tracing

VERSION: Final = version("specd-llm")


class Watchers:
    """They are told; none of them decides what is served."""

    def __init__(self, config: Config, served: Callable[[], Mapping[str, str | None]]) -> None:
        """served: what a crash report says of it. Raises `UserError` when a receiver or a file of headers cannot be
        used.
        """
        store = store_dir(config.store)
        self.metrics = Metrics(version=VERSION, restart_reasons=DEATH_REASONS)
        self.metrics.config_reloaded(ok=True, unix_time=time.time())
        self.alarm = Alarm(config, self.metrics.alarm)
        self.ledger = Ledger()
        self.requests = RequestWatch(
            config, store, self.alarm.manager, self.metrics, losing=self.ledger.goodput.losing
        )
        self.observing = Observing(config, store / "observe", self.alarm.manager)
        self.metrics.include(self.observing)
        self.tracing = tracing(config.tracing, VERSION)
        self.prompts = PromptRecorder(config.telemetry, store)
        self.crashes = Crashes(store / "crashes", served)

    def observers(self, met: Callable[[], None]) -> list[Observer]:
        """Of the engine that serves. met: see `Telemetry`."""
        return [
            Telemetry(self.metrics, self.alarm.manager, met),
            self.ledger,
            self.requests.observer,
            CrashWitness(self.crashes),
        ]

    def aftermath(self) -> list[Observer]:
        """Of an engine that served before it."""
        return [
            Aftermath(self.metrics, self.ledger, time.monotonic),
            self.requests.aftermath,
            CrashWitness(self.crashes),
        ]

    def start(self, publisher: Publisher, life: Life) -> None:
        """Begin to watch, until `aclose`; alerts are published by this publisher too."""
        self.requests.start()
        self.prompts.start()
        life.spawn(self.crashes.start())
        self.alarm.start(publisher)
        self.observing.start()

    async def aclose(self, grace: float) -> None:
        """Write what is left, and give alerts that are on their way `grace` seconds to arrive."""
        await self.observing.aclose()
        await self.alarm.aclose(grace)
        await self.requests.aclose()
        await self.prompts.aclose()
        if self.tracing is not None:
            await self.tracing.aclose()
        await self.crashes.aclose()

    def configure(self, config: Config) -> None:
        """Take over new settings; those of alerts are taken over by themselves, since they can be refused."""
        self.requests.configure(config)
        self.prompts.configure(config.telemetry)
        self.observing.configure(config)

    def identify(self, line: Line, config: Config) -> None:
        """This is the pair of models that the numbers are about from now on."""
        found = line.identity(config)
        if found is None:
            return
        self.metrics.set_target(
            found.target_revision, found.draft_revision, found.quantization, line.drafters
        )
        self.alarm.manager.set_identity(found.target_revision, found.draft_revision)
        self.requests.set_identity(found.target_revision, found.draft_revision)

    def reload_tried(self, attempt: Attempt, pending: int) -> None:
        """pending: keys that wait for a restart."""
        self.metrics.config_reloaded(ok=attempt.error is None, unix_time=attempt.unix_time, pending=pending)
        self.alarm.manager.reloaded(attempt.error)

    def reconfigured(self, reloaded: Reloaded) -> None:
        """It may be why numbers change."""
        if reloaded.changes:
            what = ", ".join(change.text() for change in reloaded.changes)
            self.alarm.manager.events.note("config_reload", what, time.time())
