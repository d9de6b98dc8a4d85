"""The router's life: startup, shutdown. It takes signals as the daemon does."""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

import uvloop

from specd.cli.tree import own_version
from specd.config.layers import Loaded
from specd.config.schema import Config, ServerSection
from specd.doors import Doors
from specd.errors import UserError
from specd.http.guard import exposed
from specd.http.keys import plain_key
from specd.http.listen import Listener
from specd.life import Life
from specd.logs import LogFormat, configure_logging
from specd.notify import Notifier
from specd.reloading import Attempt, Reloaded, Reloader, Reloads, watch
from specd.router.choice import never_reached, settings_for
from specd.router.instances import Instances
from specd.router.listeners import admin_app, inference_app
from specd.router.metrics import RouterMetrics
from specd.router.proxy import Proxy
from specd.router.traffic import Traffic

log = logging.getLogger(__name__)


def serve(loaded: Loaded, *, log_format: LogFormat = "text") -> int:
    """Run the router until it is told to end; the exit code."""
    configure_logging(log_format)
    notifier = Notifier.from_environment()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(loaded, notifier))
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return notifier.exit_of(error)
    return 0


def faults(config: Config) -> Iterator[str]:
    """Why there cannot be a router with this config, a line each."""
    yield from exposed(config)
    for name in ("speculating", "plain"):
        if not getattr(config.router, name):
            yield f"router.{name} is not set: write the URL of that instance, such as http://127.0.0.1:8080"
    if config.router.speculating and config.router.speculating == config.router.plain:
        yield "router.speculating and router.plain are the same: start a second instance without drafts"
    if why := never_reached(settings_for(config.policy.settings(), config.router.draft)):
        yield why


async def _run(loaded: Loaded, notifier: Notifier) -> None:
    config = loaded.config
    _require_good(config)
    with (
        contextlib.closing(Listener("server.listen", config.server.listen)) as inference,
        contextlib.closing(Listener("admin.listen", config.admin.listen)) as admin,
    ):
        life = Life()
        router = Router(loaded, life, notifier)
        router.startup(inference, admin)
        notifier.ready()
        sys.stdout.write(f"inference  {inference.url}\nadmin      {admin.url}\n")
        sys.stdout.flush()
        await life.over()
        notifier.stopping()
        await router.shutdown()


def _require_good(config: Config) -> None:
    if found := list(faults(config)):
        raise UserError("\n".join(found))


class Router:
    """All parts, and the order in which they come and go."""

    def __init__(self, loaded: Loaded, life: Life, notifier: Notifier) -> None:
        """Raises `UserError` when a file of keys cannot be used."""
        config = loaded.config
        self._started = time.monotonic()
        self._life = life
        self._reloader = Reloader(loaded, take_over=self._take_over, outcome=self._note_reload)
        self._reloads = Reloads(self._reloader, notifier, lambda _: None)
        self._doors = Doors(config, self._config, life.spawn)
        file = config.router.key_file
        key = None if file is None else plain_key(file, "router.key_file")
        self._instances = Instances(lambda: self._config().router, key)
        self._traffic = Traffic(self._instances, config)
        self._metrics = RouterMetrics(self._instances, self._traffic, own_version())

    def startup(self, inference: Listener, admin: Listener) -> None:
        """Open the doors, and begin to look at the instances."""
        spawn = self._life.spawn
        self._life.heed_signals(self._reloads.by_signal)
        keys = self._doors.keys
        proxy = Proxy(self._instances, self._traffic, self._config, keyed=keys.required)
        self._doors.open(inference, inference_app(proxy, keys, self._server, self._unready))
        self._doors.open(
            admin, admin_app(self, self._doors.tokens, self._config().admin.listen, self._server)
        )
        self._doors.follow_keys()
        spawn(self._instances.watch())
        spawn(watch(self._reloader, self._reloads.reload))

    async def shutdown(self) -> None:
        """Drain and close. Raises what made the router stop, if something did."""
        self._traffic.close()
        seconds = self._config().server.drain_seconds
        await self._life.drained(len(self._traffic), self._traffic.empty(), seconds)
        await self._doors.aclose()
        await self._life.aclose()
        await self._instances.aclose()
        self._life.raise_fault()

    def metrics(self) -> bytes:
        """In Prometheus' text format."""
        return self._metrics.render()

    def status(self) -> dict[str, Any]:
        """How everything stands."""
        why_not, last = self._unready(), self._reloader.last
        return {
            "version": own_version(),
            "uptime_seconds": round(time.monotonic() - self._started, 3),
            "ready": why_not is None,
            "unready_because": why_not,
            "instances": self._instances.status(),
            "load": self._traffic.status(),
            "config": {
                "hash": self._reloader.loaded.digest,
                "last_reload": {"trigger": last.trigger, "unix_time": last.unix_time, "error": last.error},
            },
        }

    async def reload(self, *, partial: bool) -> Reloaded:
        """By the admin listener; partial: keys that need a restart wait for it. Raises `UserError`."""
        return await self._reloads.reload("admin", partial)

    def _config(self) -> Config:
        return self._reloader.config

    def _server(self) -> ServerSection:
        return self._config().server

    def _unready(self) -> str | None:
        return "the router is shutting down" if self._life.ending else self._instances.unready()

    async def _take_over(self, config: Config) -> None:
        _require_good(config)
        replace_keys = self._doors.read_keys()
        replace_keys()
        self._traffic.configure(config)

    def _note_reload(self, attempt: Attempt) -> None:
        self._metrics.last_reload_good = attempt.error is None
