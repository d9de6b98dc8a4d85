"""The daemon's life: startup, main loop, shutdown. The only place with signal handlers.

Signals set events, the loop acts on them:
  SIGHUP            reload
  SIGTERM, SIGINT   drain: no new requests, open ones go on for `server.drain_seconds`, then the end
  a second one      the end now
"""

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

import uvloop

from specd.alerts.alarm import Alarm
from specd.banner import example
from specd.config.layers import Loaded
from specd.config.schema import Config
from specd.config.target import TargetSection
from specd.crashes import Crashes, CrashWitness
from specd.dashboard.dashboard import Dashboard
from specd.doors import Doors
from specd.errors import UserError
from specd.flights import Refusal
from specd.heartbeat import EXTENSION, heartbeat
from specd.http.admin import admin_app
from specd.http.app import inference_app
from specd.http.classes import ClassNames
from specd.http.crashes import crash_routes
from specd.http.generate import Service
from specd.http.guard import exposed, host_rule
from specd.http.listen import Listener
from specd.http.recorded import as_prompt
from specd.logs import LogFormat, configure_logging
from specd.models.cache import hashes
from specd.models.pair import misfit
from specd.mqtt.presence import presence, settings_of
from specd.notify import Notifier
from specd.observers import Ledger, Telemetry
from specd.reloading import Attempt, Reloaded, Reloader, Trigger
from specd.reloading import watch as watch_config
from specd.restarts import DEATH_REASONS
from specd.serving import served_name
from specd.store import store_dir
from specd.supervisor import EngineFailedError, EngineState
from specd.target.canary import Canary
from specd.target.healing import Healer
from specd.target.idle import idle
from specd.target.line import DraftChoice, Line
from specd.target.lines import Aftermath, Lines
from specd.target.updates import TargetUpdates
from specd.target.watch import watch
from specd.telemetry.prometheus import Metrics
from specd.telemetry.prompts import PromptRecorder
from specd.telemetry.requests import RequestWatch
from specd.telemetry.tracing import tracing
from specd.training import PROGRAM
from specd.view import View

log = logging.getLogger(__name__)

ENGINE_COMMAND: Final = (sys.executable, "-m", "engine.worker")

_DISTRIBUTION: Final = "specd-llm"
_EX_CONFIG: Final = 78
_LAST_WORDS: Final = 2.0
_CLOSING: Final = Refusal("the server is shutting down; send the request again later", "shutting_down")


def serve(
    loaded: Loaded,
    *,
    log_format: LogFormat = "text",
    engine_command: Sequence[str] = ENGINE_COMMAND,
    train_command: Sequence[str] = (),
) -> int:
    """Run the daemon until it is told to end; the exit code. The engine is `engine_command --fd N`. train_command: in
    the place of what trains heads.
    """
    configure_logging(log_format)
    notifier = Notifier.from_environment()
    say = log.info if log_format == "json" else _print
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            commands = engine_command, train_command or idle(PROGRAM)
            runner.run(_run(loaded, commands, notifier, say))
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return _EX_CONFIG if notifier.listens else 2
    except EngineFailedError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def _run(
    loaded: Loaded,
    commands: tuple[Sequence[str], Sequence[str]],
    notifier: Notifier,
    say: Callable[[str], None],
) -> None:
    config = loaded.config
    if why_not := list(exposed(config)):
        raise UserError("\n".join(why_not))
    with (
        contextlib.closing(Listener("server.listen", config.server.listen)) as inference,
        contextlib.closing(Listener("admin.listen", config.admin.listen)) as admin,
    ):
        daemon = Daemon(loaded, commands, notifier, say)
        daemon.startup(inference, admin)
        await daemon.main_loop()
        await daemon.shutdown()


class Daemon:
    """All parts, and the order in which they come and go."""

    def __init__(
        self,
        loaded: Loaded,
        commands: tuple[Sequence[str], Sequence[str]],
        notifier: Notifier,
        say: Callable[[str], None],
    ) -> None:
        """commands: of the engine, and of what trains. Raises `UserError` when a file of keys or of headers, or a
        receiver, cannot be used.
        """
        config = loaded.config
        self._started = time.monotonic()
        self._notifier = notifier
        self._say = say
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._fault: BaseException | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._announced = False
        self._metrics = Metrics(version=version(_DISTRIBUTION), restart_reasons=DEATH_REASONS)
        self._metrics.config_reloaded(ok=True, unix_time=time.time())
        self._alarm = Alarm(config, self._metrics.alarm)
        self._alerts = self._alarm.manager
        self._ledger = Ledger()
        self._requests = RequestWatch(
            config, store_dir(config.store), self._alerts, self._metrics, losing=self._ledger.goodput.losing
        )
        self._doors = Doors(config, lambda: self._config, self._spawn)
        self._metrics.include(self._doors.unserved)
        self._tracing = tracing(config.tracing, version(_DISTRIBUTION))
        self._reloader = Reloader(loaded, take_over=self._take_over, outcome=self._note_reload)
        self._engine_command, train_command = commands
        self._prompts = PromptRecorder(config.telemetry, store_dir(config.store))
        self._crashes = Crashes(store_dir(config.store) / "crashes", self._served)
        self._lines = Lines(
            self._line(config.model.target, DraftChoice.of(config.model.draft)),
            observers=[
                Telemetry(self._metrics, self._alerts),
                self._ledger,
                self._requests.observer,
                CrashWitness(self._crashes),
            ],
            aftermath=[
                Aftermath(self._metrics, self._ledger, time.monotonic),
                self._requests.aftermath,
                CrashWitness(self._crashes),
            ],
            switched=self._switched,
            queue=lambda: self._config.server.max_queue,
        )
        self._updates = TargetUpdates(
            self._lines,
            make=self._line,
            config=lambda: self._config,
            canary=Canary(store_dir(config.store) / "canary", lambda: self._config),
            alarm=self._alerts.judge,
            heal=lambda line, fallen: self._healer.begin(line, fallen),  # noqa: PLW0108  it comes next
        )
        self._healer = Healer(
            config=lambda: self._config,
            recorded=self._prompts.kept,
            serving=lambda: self._lines.current,
            use=self._updates.heal_with,
            program=train_command,
        )
        self._shown = self._view(served_name(config.model.target))
        self._dashboard = Dashboard(self._shown)
        self._bridge = presence(loaded, self._shown, self._metrics)

    def startup(self, inference: Listener, admin: Listener) -> None:
        """Open the doors, then begin to load the model: whoever asks meanwhile gets an answer."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._spawn(self._reload_by_signal()))
        service = Service(
            name=self._shown.name,
            enter=self._lines.enter,
            config=lambda: self._config,
            classes=ClassNames(),
            record=lambda body, tokens: self._prompts.asked(as_prompt(body), tokens),
            turnstile=self._doors.turnstile,
            unserved=self._doors.unserved.count,
        )
        app = inference_app(
            service,
            self._doors.keys,
            self._unready,
            version=version(_DISTRIBUTION),
            tracing=self._tracing,
        )
        self._doors.open(inference, app)
        allowed = host_rule(self._config.admin.listen)
        pages = [*self._dashboard.routes(), *crash_routes(self._crashes)]
        self._doors.open(admin, admin_app(self._shown, self._alarm, pages, self._doors.tokens, allowed))
        self._say(f"inference  {inference.url}\nadmin      {admin.url}")
        self._spawn(self._dashboard.run())
        self._requests.start()
        self._prompts.start()
        self._spawn(self._crashes.start())
        self._bridge.start()
        self._alarm.start(self._bridge)
        loads = lambda: not self._announced  # noqa: E731
        self._doors.follow_keys()
        self._spawn(heartbeat(self._notifier, self._lines, self._status, loads))
        self._coming_up = self._spawn(self._bring_up(inference))

    async def main_loop(self) -> None:
        """Until a signal, or until a part has failed."""
        await self._stop.wait()

    async def shutdown(self) -> None:
        """Drain and close. Raises what made the daemon stop, if something did."""
        self._notifier.stopping()
        await self._healer.aclose()
        await self._updates.aclose()
        self._lines.close(_CLOSING)
        if self._fault is None and self._lines.current.supervisor.info is not None:
            await self._drain()
        self._coming_up.cancel()  # what ends now would look like a failed start to it
        for line in self._lines.all:
            line.close(_CLOSING)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._lines.empty(), _LAST_WORDS)
        self._dashboard.close()
        await self._doors.aclose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(line.end(_CLOSING) for line in self._lines.all))
        grace = 0 if self._hurry.is_set() else _LAST_WORDS
        await self._alarm.aclose(grace)
        await self._requests.aclose()
        await self._prompts.aclose()
        if self._tracing is not None:
            await self._tracing.aclose()
        await self._crashes.aclose()
        await self._bridge.aclose(grace)
        if self._fault is not None:
            raise self._fault

    async def _drain(self) -> None:
        seconds = self._config.server.drain_seconds
        self._notifier.extend(seconds + EXTENSION)
        open_requests = len(self._lines)
        if open_requests:
            log.info(
                "draining: %d open requests have %g s to end; a second signal ends them now",
                open_requests,
                seconds,
            )
        done = asyncio.ensure_future(self._lines.empty())
        hurried = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({done, hurried}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in (done, hurried):
            task.cancel()

    async def _bring_up(self, inference: Listener) -> None:
        """From a config to a model that answers."""
        line = self._lines.current
        await line.find()
        line.start("alone")
        self._spawn(line.over())
        await line.read()
        await line.ready()
        self._identify(self._config)
        await self._alerts.judge(line.findings(self._config))
        self._spawn(self._updates.check_start())
        self._healer.go_on(line)
        self._spawn(watch(lambda: self._config.model.target, self._updates.replace))
        self._spawn(watch_config(self._reloader, self._reload))
        self._announced = True
        self._notifier.ready()
        self._say(
            f"ready, for example:\n  {example(inference.url, await line.model(), keyed=self._doors.keys.required)}"
        )

    def _status(self) -> str:
        return self._unready() or f"serving: {self._ledger.running} running, {self._ledger.waiting} waiting"

    @property
    def _config(self) -> Config:
        return self._reloader.loaded.config

    def _unready(self) -> str | None:
        """Why nothing would be served now, if so."""
        if self._stop.is_set():
            return "the server is shutting down"
        line = self._lines.current
        match line.supervisor.state:
            case EngineState.READY if line.known is not None:
                return None
            case EngineState.DOWN | EngineState.FAILING:
                death = line.supervisor.last_death
                return f"the engine stopped ({death.text if death else 'unknown'}) and is started again"
            case _:
                return f"the model is loading: {line.supervisor.loading}".rstrip(": ")

    def _view(self, name: str) -> View:
        return View(
            version=version(_DISTRIBUTION),
            started=self._started,
            name=name,
            line=lambda: self._lines.current,
            updates=self._updates,
            healer=self._healer,
            unready=self._unready,
            ledger=self._ledger,
            metric_source=self._metrics,
            alarm=self._alarm,
            request_watch=self._requests,
            reloader=self._reloader,
            run_reload=self._reload,
            run_set=self._set,
            mqtt=lambda: self._bridge.status(),  # noqa: PLW0108  the bridge comes later: it tells of this view
            crashes=self._crashes,
        )

    async def _reload(self, trigger: Trigger, partial: bool = False) -> Reloaded:
        if not self._announced:
            return self._noted(await self._reloader.reload(trigger, partial=partial))
        self._notifier.reloading()
        try:
            return self._noted(await self._reloader.reload(trigger, partial=partial))
        finally:
            self._notifier.ready()

    async def _set(self, trigger: Trigger, values: Mapping[str, Any]) -> Reloaded:
        return self._noted(await self._reloader.set(trigger, values))

    def _noted(self, reloaded: Reloaded) -> Reloaded:
        if reloaded.changes:
            what = ", ".join(change.text() for change in reloaded.changes)
            self._alerts.events.note("config_reload", what, time.time())
        return reloaded

    async def _reload_by_signal(self) -> None:
        with contextlib.suppress(UserError):  # it is in the log, and a signal has no other answer
            await self._reload("SIGHUP")

    async def _take_over(self, config: Config) -> None:
        """Put a config in force. Whatever can refuse it comes first, and changes nothing when it does."""
        files, target = self._lines.current.files, config.model.target
        updates = not target.same(self._config.model.target) or (
            DraftChoice.of(config.model.draft) != DraftChoice.of(self._config.model.draft)
        )
        if files is not None and not updates and (fault := misfit(config.model.draft, files.path, hashes())):
            raise UserError(fault)
        replace_keys = self._doors.read_keys()
        broker = settings_of(config, self._reloader.loaded.sources)
        self._alerts.configure(config.alerts_told)
        if updates:
            await self._update_for(config)
        self._requests.configure(config)
        self._prompts.configure(config.telemetry)
        replace_keys()
        self._bridge.configure(broker)
        self._lines.configure(config)
        self._identify(config)

    async def _update_for(self, config: Config) -> None:
        try:
            await self._updates.replace(config.model.target, DraftChoice.of(config.model.draft))
        except UserError:
            self._alerts.configure(self._config.alerts)
            raise

    def _note_reload(self, attempt: Attempt) -> None:
        pending = len(self._reloader.pending)
        self._metrics.config_reloaded(ok=attempt.error is None, unix_time=attempt.unix_time, pending=pending)
        self._alerts.reloaded(attempt.error)

    def _line(self, target: TargetSection, draft: DraftChoice) -> Line:
        return Line(target, draft, self._engine_command, lambda: self._config)

    def _switched(self, line: Line) -> None:
        self._identify(self._config)
        self._healer.switched(line)
        self._spawn(line.over())

    def _identify(self, config: Config) -> None:
        """Which pair of models the numbers are about."""
        found, files = self._lines.identity(config), self._lines.current.files
        if found is None or files is None:
            return
        self._metrics.set_target(
            found.target_revision, found.draft_revision, found.quantization, files.drafts.proposers
        )
        self._alerts.set_identity(found.target_revision, found.draft_revision)
        self._requests.set_identity(found.target_revision, found.draft_revision)

    def _served(self) -> dict[str, str | None]:
        """What a crash report says of it."""
        pair = self._lines.identity(self._config)
        return {
            "version": version(_DISTRIBUTION),
            "config": self._reloader.loaded.digest,
            "target_revision": None if pair is None else pair.target_revision,
            "draft_revision": None if pair is None else pair.draft_revision,
        }

    def _asked_to_stop(self) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something for as long as the daemon lives; its failure ends the daemon."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fault = self._fault or error
            self._stop.set()
