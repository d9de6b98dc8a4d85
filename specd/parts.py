"""The wiring: which parts there are, and who knows whom."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from starlette.types import ASGIApp

from engine.classes import ClassNames
from specd.config.layers import Loaded
from specd.config.schema import Config, ServerSection
from specd.config.target import TargetSection
from specd.dashboard.dashboard import Dashboard
from specd.doors import Doors
from specd.engineless import NO_ENGINE, engineless
from specd.http.admin import admin_app
from specd.http.app import inference_app
from specd.http.crashes import crash_routes
from specd.http.generate import Service
from specd.http.guard import host_rule
from specd.http.observed import observed_routes
from specd.http.recorded import as_prompt
from specd.life import Life
from specd.mqtt.presence import presence
from specd.notify import Notifier
from specd.reloading import Reloader, Reloads
from specd.serving import served_name
from specd.store import store_dir
from specd.taking_over import TakeOver
from specd.target.canary import Canary
from specd.target.files import DraftChoice
from specd.target.healing import Healer
from specd.target.line import Line
from specd.target.lines import Lines
from specd.target.updates import TargetUpdates
from specd.view import View
from specd.watchers import VERSION, Watchers


class Programs(NamedTuple):
    """What the daemon starts. Each is a command that arguments are added to."""

    engine: Sequence[str]
    training: Sequence[str]
    """What makes drafts, at idle priority."""


class Parts:
    """All of them, joined. Nothing runs yet."""

    def __init__(self, loaded: Loaded, programs: Programs, life: Life, notifier: Notifier) -> None:
        """Raises `UserError` when a file of keys or of headers, or a receiver, cannot be used."""
        self._life = life
        self._programs = programs
        self.reloader = Reloader(
            loaded,
            take_over=lambda config: self._take_over(config),  # noqa: PLW0108  it comes last: it tells the others
            outcome=lambda tried: self.watchers.reload_tried(tried, len(self.reloader.pending)),
        )
        self.watchers = Watchers(loaded.config, self._served)
        self.reloads = Reloads(self.reloader, notifier, self.watchers.reconfigured)
        self.doors = Doors(loaded.config, self._config, life.spawn)
        self.watchers.metrics.include(self.doors.unserved)
        self.lines = self._lines(loaded.config)
        self.updates = self._target_updates(loaded.config)
        self.watchers.alarm.manager.watch(self.updates.attempts.findings)
        self.watchers.metrics.include(self.updates.attempts)
        self.healer = self._healer()
        self.shown = self._view(loaded.config)
        self.dashboard = Dashboard(self.shown)
        self.bridge = presence(loaded, self.shown, self.watchers.metrics)
        self._take_over = TakeOver(
            self.reloader, self.doors, self.lines, self.updates, self.watchers, self.bridge
        )

    def inference(self) -> ASGIApp:
        """What clients are served by."""
        service = Service(
            name=self.shown.name,
            enter=self.lines.enter,
            config=self._config,
            classes=ClassNames(),
            record=lambda body, tokens: self.watchers.prompts.asked(as_prompt(body), tokens),
            turnstile=self.doors.turnstile,
            unserved=self.doors.unserved.count,
        )
        return inference_app(
            service, self.doors.keys, self.unready, version=VERSION, tracing=self.watchers.tracing
        )

    def admin(self) -> ASGIApp:
        """What operators are served by."""
        pages = [
            *self.dashboard.routes(),
            *crash_routes(self.watchers.crashes),
            *observed_routes(self.watchers.observing),
        ]
        allowed = host_rule(self._config().admin.listen, self._server)
        return admin_app(self.shown, self.watchers.alarm, pages, self.doors.tokens, allowed)

    def unready(self) -> str | None:
        """Why nothing would be served now, if so."""
        if self._life.ending:
            return "the server is shutting down"
        return NO_ENGINE.message if engineless(self._config()) else self.lines.current.unready()

    def status(self) -> str:
        """The same in a line, for the service manager."""
        ledger = self.watchers.ledger
        return self.unready() or f"serving: {ledger.running} running, {ledger.waiting} waiting"

    def _config(self) -> Config:
        return self.reloader.config

    def _server(self) -> ServerSection:
        return self._config().server

    def _lines(self, config: Config) -> Lines:
        return Lines(
            self._line(config.model.target, DraftChoice.of(config.model.draft)),
            observers=self.watchers.observers(self._met),
            aftermath=self.watchers.aftermath(),
            switched=self._switched,
            queue=lambda: self._config().server.max_queue,
        )

    def _line(self, target: TargetSection, draft: DraftChoice) -> Line:
        return Line(target, draft, self._programs.engine, self._config)

    def _met(self) -> None:
        self.watchers.identify(self.lines.current, self._config())

    def _switched(self, line: Line) -> None:
        self.watchers.identify(line, self._config())
        self.healer.switched(line)
        self._life.spawn(line.over())

    def _target_updates(self, config: Config) -> TargetUpdates:
        return TargetUpdates(
            self.lines,
            make=self._line,
            config=self._config,
            canary=Canary(store_dir(config.store) / "canary", self._config),
            alarm=self.watchers.alarm.manager.judge,
            heal=lambda line, fallen: self.healer.begin(line, fallen),  # noqa: PLW0108  it comes next
        )

    def _healer(self) -> Healer:
        return Healer(
            config=self._config,
            recorded=self.watchers.prompts.kept,
            serving=lambda: self.lines.current,
            use=self.updates.heal_with,
            program=self._programs.training,
        )

    def _view(self, config: Config) -> View:
        return View(
            version=VERSION,
            started=time.monotonic(),
            name=served_name(config.model.target),
            line=lambda: self.lines.current,
            updates=self.updates,
            healer=self.healer,
            unready=self.unready,
            ledger=self.watchers.ledger,
            metric_source=self.watchers.metrics,
            alarm=self.watchers.alarm,
            request_watch=self.watchers.requests,
            reloader=self.reloader,
            run_reload=self.reloads.reload,
            run_set=self.reloads.set,
            mqtt=lambda: self.bridge.status(),  # noqa: PLW0108  the bridge comes later: it tells of this view
            fleet=lambda: self.bridge.fleet(),  # noqa: PLW0108
            crashes=self.watchers.crashes,
            observing=self.watchers.observing,
        )

    def _served(self) -> dict[str, str | None]:
        """What a crash report says of it."""
        pair = self.lines.identity(self._config())
        return {
            "version": VERSION,
            "config": self.reloader.loaded.digest,
            "target_revision": None if pair is None else pair.target_revision,
            "draft_revision": None if pair is None else pair.draft_revision,
        }
