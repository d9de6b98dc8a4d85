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
from collections.abc import Callable, Coroutine, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import uvloop

from engine.api import Configure, Launch
from policies.profile import Profile, with_load
from policies.settings import PolicySettings
from specd.alerts.manager import AlertManager
from specd.banner import example
from specd.config.layers import Loaded
from specd.config.schema import Config
from specd.errors import UserError
from specd.flights import Refusal, UnservedError
from specd.http.admin import admin_app
from specd.http.app import inference_app
from specd.http.classes import ClassNames
from specd.http.generate import Service
from specd.http.guard import Keys, exposed, host_rule
from specd.http.listen import Listener, Server
from specd.launching import launch_of
from specd.logs import LogFormat, configure_logging
from specd.models.cache import hashes
from specd.models.drafts import Drafts, find_drafts
from specd.models.pair import misfit
from specd.models.profile import find_profile
from specd.models.resolve import resolve_target
from specd.mqtt.presence import presence, settings_of
from specd.notify import Notifier
from specd.observers import Ledger, Telemetry
from specd.reloading import Attempt, Reloaded, Reloader, Trigger
from specd.restarts import DEATH_REASONS
from specd.serving import ServedModel, load_served, served_name
from specd.supervisor import EngineFailedError, EngineState, Limits, Supervisor
from specd.telemetry.prometheus import Metrics
from specd.threads import in_thread
from specd.view import View

log = logging.getLogger(__name__)

ENGINE_COMMAND: Final = (sys.executable, "-m", "engine.worker")

_DISTRIBUTION: Final = "specd-llm"
_EX_CONFIG: Final = 78
_HEARTBEAT: Final = 5.0
_EXTENSION: Final = 30.0
_LAST_WORDS: Final = 2.0
_CLOSING: Final = Refusal("the server is shutting down; send the request again later", "shutting_down")


def serve(
    loaded: Loaded, *, log_format: LogFormat = "text", engine_command: Sequence[str] = ENGINE_COMMAND
) -> int:
    """Run the daemon until it is told to end; the exit code. The engine is `engine_command --fd N`."""
    configure_logging(log_format)
    notifier = Notifier.from_environment()
    say = log.info if log_format == "json" else _print
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(loaded, engine_command, notifier, say))
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
    loaded: Loaded, engine_command: Sequence[str], notifier: Notifier, say: Callable[[str], None]
) -> None:
    config = loaded.config
    why_not = exposed(config.admin.listen, config.admin.token_file)
    if why_not is not None:
        raise UserError(why_not)
    with (
        contextlib.closing(Listener("server.listen", config.server.listen)) as inference,
        contextlib.closing(Listener("admin.listen", config.admin.listen)) as admin,
    ):
        daemon = Daemon(loaded, engine_command, notifier, say)
        daemon.startup(inference, admin)
        await daemon.main_loop()
        await daemon.shutdown()


class Daemon:
    """All parts, and the order in which they come and go."""

    def __init__(
        self,
        loaded: Loaded,
        engine_command: Sequence[str],
        notifier: Notifier,
        say: Callable[[str], None],
    ) -> None:
        """Raises `UserError` when a file of keys or a receiver cannot be used."""
        config = loaded.config
        self._started = time.monotonic()
        self._notifier = notifier
        self._say = say
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._fault: BaseException | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._servers: list[tuple[Server, asyncio.Task[None]]] = []
        self._path: Path | None = None
        self._drafts = Drafts(())
        self._profile: Profile | None = None
        self._model: asyncio.Future[ServedModel] = asyncio.get_running_loop().create_future()
        self._announced = False
        self._metrics = Metrics(version=version(_DISTRIBUTION), restart_reasons=DEATH_REASONS)
        self._metrics.config_reloaded(ok=True, unix_time=time.time())
        self._alerts = AlertManager(config.alerts, self._metrics)
        self._keys = Keys(config.server.api_keys_file, "server.api_keys_file")
        self._admin_keys = Keys(config.admin.token_file, "admin.token_file")
        self._ledger = Ledger()
        self._reloader = Reloader(loaded, take_over=self._take_over, outcome=self._note_reload)
        self._supervisor = Supervisor(
            command=engine_command,
            launch=self._launch,
            limits=self._limits,
            window=2 * config.engine.max_running,
            observers=[Telemetry(self._metrics, self._alerts), self._ledger],
        )
        self._shown = self._view(served_name(config.model.target))
        self._bridge = presence(loaded, self._shown, self._metrics)

    def startup(self, inference: Listener, admin: Listener) -> None:
        """Open the doors, then begin to load the model: whoever asks meanwhile gets an answer."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._spawn(self._reload_by_signal()))
        service = Service(
            name=self._shown.name,
            supervisor=self._supervisor,
            model=lambda: asyncio.shield(self._model),
            config=lambda: self._config,
            classes=ClassNames(),
        )
        app = inference_app(service, self._keys, self._unready, version=version(_DISTRIBUTION))
        self._open(inference, app)
        self._open(admin, admin_app(self._shown, self._admin_keys, host_rule(self._config.admin.listen)))
        self._say(f"inference  {inference.url}\nadmin      {admin.url}")
        self._alerts.start()
        self._bridge.start()
        self._spawn(self._heartbeat())
        self._coming_up = self._spawn(self._bring_up(inference))

    async def main_loop(self) -> None:
        """Until a signal, or until a part has failed."""
        await self._stop.wait()

    async def shutdown(self) -> None:
        """Drain and close. Raises what made the daemon stop, if something did."""
        self._notifier.stopping()
        self._supervisor.close(_CLOSING)
        if self._fault is None and self._supervisor.info is not None:
            await self._drain()
        self._coming_up.cancel()  # what ends now would look like a failed start to it
        self._supervisor.end_all(_CLOSING)
        if not self._model.done():
            self._model.set_exception(UnservedError(_CLOSING))
            self._model.exception()  # marks it as seen: maybe nobody waits
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._supervisor.flights.empty(), _LAST_WORDS)
        for server, _ in self._servers:
            server.should_exit = True
        await asyncio.gather(*(task for _, task in self._servers), return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        grace = 0 if self._hurry.is_set() else _LAST_WORDS
        await self._alerts.aclose(grace)
        await self._bridge.aclose(grace)
        if self._fault is not None:
            raise self._fault

    async def _drain(self) -> None:
        seconds = self._config.server.drain_seconds
        self._notifier.extend(seconds + _EXTENSION)
        open_requests = len(self._supervisor.flights)
        if open_requests:
            log.info(
                "draining: %d open requests have %g s to end; a second signal ends them now",
                open_requests,
                seconds,
            )
        done = asyncio.ensure_future(self._supervisor.flights.empty())
        hurried = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({done, hurried}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in (done, hurried):
            task.cancel()

    async def _bring_up(self, inference: Listener) -> None:
        """From a config to a model that answers."""
        target = self._config.model.target
        self._path = await in_thread(resolve_target, target.path)
        self._drafts = await in_thread(find_drafts, self._config.model.draft, self._path, hashes())
        self._profile = await in_thread(find_profile, self._config, self._path, self._drafts, hashes())
        self._spawn(self._supervisor.run())
        model = await in_thread(load_served, target, self._path, self._drafts)
        self._model.set_result(model)
        await self._supervisor.engine_info()
        self._identify(self._config)
        self._announced = True
        self._notifier.ready()
        self._say(f"ready, for example:\n  {example(inference.url, model, keyed=self._keys.required)}")

    async def _heartbeat(self) -> None:
        """Tell the service manager how things are; feed its watchdog only while the engine lives.

        A restart of the engine is life as well: it is bounded by engine.start_seconds. An engine that fails
        again and again is not.
        """
        interval = min(_HEARTBEAT, (self._notifier.watchdog_seconds or _HEARTBEAT * 3) / 3)
        seen = -1
        while True:
            signs, state = self._supervisor.signs_of_life, self._supervisor.state
            if signs != seen or state in {EngineState.STARTING, EngineState.DOWN}:
                self._notifier.watchdog()
            if not self._announced:
                self._notifier.extend(_EXTENSION)
            self._notifier.status(
                self._unready() or f"serving: {self._ledger.running} running, {self._ledger.waiting} waiting"
            )
            seen = signs
            await asyncio.sleep(interval)

    @property
    def _config(self) -> Config:
        return self._reloader.loaded.config

    def _launch(self) -> Launch:
        assert self._path is not None, "the supervisor starts after the model was resolved"
        costs = None if self._profile is None else self._profile.costs
        return launch_of(self._config, self._path, self._drafts, self._policy(self._config), costs)

    def _policy(self, config: Config) -> PolicySettings:
        settings = config.policy.settings()
        return settings if self._profile is None else with_load(settings, self._profile)

    def _limits(self) -> Limits:
        engine = self._config.engine
        places = engine.max_running + self._config.server.max_queue
        return Limits(places, engine.hang_seconds, engine.start_seconds)

    def _unready(self) -> str | None:
        """Why nothing would be served now, if so."""
        if self._stop.is_set():
            return "the server is shutting down"
        match self._supervisor.state:
            case EngineState.READY if self._model.done():
                return None
            case EngineState.DOWN | EngineState.FAILING:
                death = self._supervisor.last_death
                return f"the engine stopped ({death.text if death else 'unknown'}) and is started again"
            case _:
                return f"the model is loading: {self._supervisor.loading}".rstrip(": ")

    def _view(self, name: str) -> View:
        return View(
            version=version(_DISTRIBUTION),
            started=self._started,
            name=name,
            model=lambda: self._model.result() if self._model.done() else None,
            unready=self._unready,
            supervisor=self._supervisor,
            ledger=self._ledger,
            metric_source=self._metrics,
            alert_manager=self._alerts,
            reloader=self._reloader,
            run_reload=self._reload,
            mqtt=lambda: self._bridge.status(),  # noqa: PLW0108  the bridge comes later: it tells of this view
        )

    async def _reload(self, trigger: Trigger) -> Reloaded:
        if not self._announced:
            return await self._reload_noted(trigger)
        self._notifier.reloading()
        try:
            return await self._reload_noted(trigger)
        finally:
            self._notifier.ready()

    async def _reload_noted(self, trigger: Trigger) -> Reloaded:
        reloaded = await self._reloader.reload(trigger)
        if reloaded.changes:
            what = ", ".join(change.text() for change in reloaded.changes)
            self._alerts.events.note("config_reload", what, time.time())
        return reloaded

    async def _reload_by_signal(self) -> None:
        with contextlib.suppress(UserError):  # it is in the log, and a signal has no other answer
            await self._reload("SIGHUP")

    def _take_over(self, config: Config) -> None:
        """Put a config in force. Whatever can refuse it comes first, and changes nothing when it does."""
        if self._path is not None and (fault := misfit(config.model.draft, self._path, hashes())):
            raise UserError(fault)
        keys, admin_keys = self._keys.read(), self._admin_keys.read()
        broker = settings_of(config, self._reloader.loaded.sources)
        self._alerts.configure(config.alerts)
        self._keys.replace(keys)
        self._admin_keys.replace(admin_keys)
        self._bridge.configure(broker)
        self._supervisor.configure(
            Configure(
                policy=self._policy(config),
                draft=self._drafts.settings(config.model.draft),
                verification=config.engine.verification,
            )
        )
        self._identify(config)

    def _note_reload(self, attempt: Attempt) -> None:
        self._metrics.config_reloaded(ok=attempt.error is None, unix_time=attempt.unix_time)

    def _identify(self, config: Config) -> None:
        """Which pair of models the numbers are about."""
        if not self._model.done():
            return
        target, draft = self._model.result().info, config.model.draft
        revision = self._drafts.revision(draft)
        self._metrics.set_target(target.revision, revision, target.quantization, self._drafts.proposers)
        self._alerts.set_identity(target.revision, revision)

    def _asked_to_stop(self) -> None:
        (self._hurry if self._stop.is_set() else self._stop).set()

    def _open(self, listener: Listener, app: Any) -> None:
        server = Server(app)
        self._servers.append((server, self._spawn(server.serve(sockets=[listener.socket]))))

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
